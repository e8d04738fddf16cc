"""What the datamodules of images share: splits held in memory, loaders of (x, y) batches."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

Images = tuple[Tensor, Tensor]


class ImageDataModule(pl.LightningDataModule):
    """Batches (x (B, 3, 32, 32) float32, y (B,) int64) of the splits that `_load` returns.

    Args:
        batch_size: images in a batch; the last one of a split may be smaller.
        num_workers: worker processes of each loader.
        seed: of the order of training batches; None for a new order each time.
    """

    def __init__(self, batch_size: int, num_workers: int, seed: int | None) -> None:
        super().__init__()
        self.batch_size, self.num_workers, self.seed = batch_size, num_workers, seed
        self._splits: dict[str, Dataset[Any]] = {}

    def setup(self, stage: str | None = None) -> None:
        """Loads all splits, once."""
        if not self._splits:
            self._splits = self._load()

    def _load(self) -> dict[str, Dataset[Any]]:
        raise NotImplementedError

    def train_dataloader(self) -> DataLoader[Images]:
        """Shuffled batches of the training split."""
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        return self._loader("train", shuffle=True, generator=generator)

    def val_dataloader(self) -> DataLoader[Images]:
        """Batches of the validation split, in order."""
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[Images]:
        """Batches of the test split, in order."""
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader[Images]:
        """Batches of the test split, in order."""
        return self._loader("test")

    def _loader(
        self, name: str, shuffle: bool = False, generator: torch.Generator | None = None
    ) -> DataLoader[Images]:
        if not self._splits:
            raise RuntimeError(f"the {name} split is not loaded; call setup() first")
        return DataLoader(
            self._splits[name],
            self.batch_size,
            shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            generator=generator,
        )


def split(x: Tensor, y: Tensor, sizes: dict[str, int], seed: int) -> dict[str, Dataset[Any]]:
    """Disjoint random splits of these sizes."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    parts = order[: sum(sizes.values())].split(list(sizes.values()))
    return {name: TensorDataset(x[part], y[part]) for name, part in zip(sizes, parts, strict=True)}
