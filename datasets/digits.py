"""Real handwritten digits, at hand without a network: scikit-learn's, brought to 3 x 32 x 32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from .extras import import_extra
from .images import ImageDataModule, check_settings
from .splits import Batch


class DigitsDataModule(ImageDataModule):
    """The 1,797 digits of UCI's optical recognition set (test part), as scikit-learn ships them.

    An image of 8 x 8 grey values from 0 to 16 becomes one of 3 x 32 x 32, of zero mean and unit
    variance over the training split: enlarged bilinearly, the same in each colour.

    Args:
        batch_size: images in a batch.
        seed: of the splits (1,437 to train, 180 to validate, 180 to test), of the order, and of the
            augmentation.
        num_workers: worker processes of each loader; all is in memory, so 0 is the fastest.
        augment: whether training images are shifted by up to 4 pixels (what comes in is
            background), one pixel of the original; new in each epoch. None is mirrored: a mirrored
            digit is none.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.
        ImportError: in `setup`, if scikit-learn is missing.
    """

    num_classes = 10
    flip = False

    def __init__(
        self, batch_size: int = 128, seed: int = 0, num_workers: int = 0, augment: bool = False
    ) -> None:
        settings = check_settings(batch_size, num_workers, seed, augment)
        batch_size, num_workers, seed, augment = settings
        super().__init__(*settings)
        self.save_hyperparameters()

    def _images(self) -> tuple[dict[str, Batch], Tensor]:
        x, y = _digits()
        splits = self._split(x, y, {"train": len(x) - 360, "val": 180, "test": 180})
        train, _ = splits["train"]
        mean, deviation = train.mean(), train.std()
        for images, _ in splits.values():
            images.sub_(mean).div_(deviation)
        return splits, (-mean / deviation).expand(3)


def _digits() -> Batch:
    datasets = import_extra(
        "sklearn.datasets", "DigitsDataModule reads the digits that scikit-learn ships"
    )
    images, labels = datasets.load_digits(return_X_y=True)
    grey = torch.from_numpy(images).float().view(-1, 1, 8, 8)
    large = interpolate(grey, size=(32, 32), mode="bilinear", align_corners=False)
    return large.repeat(1, 3, 1, 1), torch.from_numpy(labels).long()
