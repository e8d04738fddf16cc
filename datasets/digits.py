"""Real handwritten digits, at hand without a network: scikit-learn's, brought to 3 x 32 x 32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from bppsa_lightning.datasets.checks import check_int
from bppsa_lightning.datasets.images import ImageDataModule, split


class DigitsDataModule(ImageDataModule):
    """The 1,797 digits of UCI's optical recognition set (test part), as scikit-learn ships them.

    An image of 8 x 8 grey values from 0 to 16 becomes one of 3 x 32 x 32, of zero mean and unit
    variance over the training split: enlarged bilinearly, the same in each colour.

    Args:
        batch_size: images in a batch.
        seed: of the splits (1,437 to train, 180 to validate, 180 to test) and of the order.
        num_workers: worker processes of each loader; all is in memory, so 0 is the fastest.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.
        ImportError: in `setup`, if scikit-learn is missing.
    """

    num_classes = 10

    def __init__(self, batch_size: int = 128, seed: int = 0, num_workers: int = 0) -> None:
        batch_size = check_int("batch_size", batch_size, 1)
        seed = check_int("seed", seed, 0)
        num_workers = check_int("num_workers", num_workers, 0)
        super().__init__(batch_size, num_workers, seed)
        self.save_hyperparameters()

    def _load(self) -> dict[str, Dataset[Any]]:
        x, y = _digits()
        sizes = {"val": 180, "test": 180}
        assert self.seed is not None
        splits = split(x, y, {"train": len(x) - 360, **sizes}, self.seed)
        train = splits["train"][:][0]
        mean, deviation = train.mean(), train.std()
        for images in splits.values():
            images[:][0].sub_(mean).div_(deviation)
        return splits


def _digits() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "DigitsDataModule reads the digits that scikit-learn ships; pip install scikit-learn"
        ) from error
    images, labels = load_digits(return_X_y=True)
    grey = torch.from_numpy(images).float().view(-1, 1, 8, 8)
    large = interpolate(grey, size=(32, 32), mode="bilinear", align_corners=False)
    return large.repeat(1, 3, 1, 1), torch.from_numpy(labels).long()
