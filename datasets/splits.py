"""What the datamodules share: splits by stage, a loader for each, batches made by the dataset."""

from collections.abc import Iterable
from typing import Any

from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .resumable import EpochSampler, ResumableLoader

Batch = tuple[Tensor, Tensor]

SPLITS = ("train", "val", "test")
_SPLITS_OF_STAGE = {
    None: SPLITS,
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("test",),
}


class SplitDataModule(LightningDataModule):
    """Loaders of the splits that `_load` returns, loaded when their stage is set up.

    The datasets' ``__getitems__`` returns a finished batch.

    Args:
        batch_size: samples in a batch; the last one of a split may be smaller.
        num_workers: worker processes of each loader.
        drop_last: whether training leaves out a last batch smaller than ``batch_size``.
    """

    def __init__(self, batch_size: int, num_workers: int, drop_last: bool) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.drop_last = drop_last
        self._datasets: dict[str, Dataset[Batch]] = {}

    def setup(self, stage: str | None = None) -> None:
        """Loads the splits of a stage; makes them where ``prepare_data`` did not run.

        Args:
            stage: ``"fit"``, ``"validate"``, ``"test"``, ``"predict"``, or None for all splits.

        Raises:
            ValueError: if the stage is another one.
        """
        if stage not in _SPLITS_OF_STAGE:
            wanted = [name for name in _SPLITS_OF_STAGE if name]
            raise ValueError(f"stage is {stage!r}; wanted one of {wanted}, or None for all")
        missing = [name for name in _SPLITS_OF_STAGE[stage] if name not in self._datasets]
        if missing:
            self._datasets.update(self._load(missing))

    def _load(self, names: Iterable[str]) -> dict[str, Dataset[Batch]]:
        """At least the splits of these names, made if need be."""
        raise NotImplementedError

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled batches of the training split; a resumed run goes on where it was."""
        dataset, trainer = self._dataset("train"), self.trainer
        if trainer is not None and trainer.overfit_batches:  # type: ignore[attr-defined]
            return self._loader("train")  # the same few batches, again and again
        return ResumableLoader(
            dataset,
            self.batch_size,
            EpochSampler(dataset, self._order_seed()),
            self._trained,
            drop_last=self.drop_last,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            collate_fn=_hand_on,
        )

    def _order_seed(self) -> int | None:
        """The seed of the order of training; None for torch's global generator."""
        return None

    def _trained(self) -> int | None:
        """How many batches of this epoch the Trainer has done with."""
        trainer: Any = self.trainer
        if trainer is None:
            return None
        return int(trainer.fit_loop.epoch_loop.batch_progress.current.processed)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Batches of the validation split, in order."""
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        """Batches of the test split, in order."""
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Batches of the test split, in order."""
        return self._loader("test")

    def _loader(self, name: str) -> DataLoader[Batch]:
        return DataLoader(
            self._dataset(name),
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            collate_fn=_hand_on,
        )

    def _dataset(self, name: str) -> Dataset[Batch]:
        if name not in self._datasets:
            raise RuntimeError(f"the {name} split is not loaded; call setup() first")
        return self._datasets[name]


def _hand_on(batch: Any) -> Any:
    """The collate function of a dataset whose ``__getitems__`` returns whole batches."""
    return batch
