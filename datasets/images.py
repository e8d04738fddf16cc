"""What the datamodules of images share: splits held in memory, loaders of (x, y) batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .augmentation import CropAndFlip
from .checks import check_bool, check_int
from .epochs import ResumableLoader
from .splits import Batch, SplitDataModule

_PADDING = 4  # pixels


class ImageDataset(Dataset[Batch]):
    """Images and their labels; ``__getitems__`` returns the finished batch.

    Args:
        x: (N, 3, 32, 32) float32.
        y: (N,) int64.
        augment: makes other images of a batch's, given their numbers as well. Samples then go by
            numbers through the epochs, ``epoch * N + index``.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        augment: Callable[[Tensor, list[int]], Tensor] | None = None,
    ) -> None:
        self.x, self.y, self.augment = x, y, augment

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Batch:
        """Returns the image, (3, 32, 32), and its label, ()."""
        x, y = self.__getitems__([index])
        return x[0], y[0]

    def __getitems__(self, indices: list[int]) -> Batch:
        """Returns the images, (B, 3, 32, 32), and their labels, (B,)."""
        if self.augment is None:
            return self.x[indices], self.y[indices]
        within = [index % len(self) for index in indices]
        return self.augment(self.x[within], indices), self.y[within]


def check_settings(
    batch_size: int, num_workers: int, seed: int, augment: bool
) -> tuple[int, int, int, bool]:
    """The arguments as plain Python values, which a checkpoint can hold.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.
    """
    return (
        check_int("batch_size", batch_size, 1),
        check_int("num_workers", num_workers, 0),
        check_int("seed", seed, 0, 2**64 - 1),
        check_bool("augment", augment),
    )


class ImageDataModule(SplitDataModule):
    """Batches (x (B, 3, 32, 32) float32, y (B,) int64) of the splits that `_images` returns.

    Args:
        batch_size: images in a batch; the last one of a split may be smaller.
        num_workers: worker processes of each loader.
        seed: of the order and the augmentation of training batches.
        augment: whether training images are shifted by up to 4 pixels and, if `flip`, half of
            them mirrored; new in each epoch.
    """

    flip: bool

    def __init__(self, batch_size: int, num_workers: int, seed: int, augment: bool) -> None:
        super().__init__(batch_size, num_workers, drop_last=False)
        self.seed, self.augment = seed, augment
        self._black = torch.zeros(3)

    def _load(self, names: Iterable[str]) -> dict[str, Dataset[Batch]]:
        images, self._black = self._images()
        return {name: ImageDataset(x, y) for name, (x, y) in images.items()}

    def _images(self) -> tuple[dict[str, Batch], Tensor]:
        """All splits, and what a black pixel is in each colour, (3,)."""
        raise NotImplementedError

    def train_dataloader(self) -> ResumableLoader:
        """Shuffled batches of the training split, the same ones after each call."""
        images = self._dataset("train")
        assert isinstance(images, ImageDataset)
        if self.augment:
            images.augment = CropAndFlip(_PADDING, self.flip, self._black, self.seed, len(images))
        return self._shuffled(numbered=self.augment)

    def _new_order_seed(self) -> int:
        return self.seed

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def _split(self, x: Tensor, y: Tensor, sizes: dict[str, int]) -> dict[str, Batch]:
        """Disjoint random splits of these sizes."""
        order = torch.randperm(len(x), generator=self._generator())
        parts = order[: sum(sizes.values())].split(list(sizes.values()))
        return {name: (x[part], y[part]) for name, part in zip(sizes, parts, strict=True)}
