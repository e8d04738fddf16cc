"""What the datamodules share: splits by stage, a loader for each, batches made by the dataset."""

import warnings
from collections.abc import Iterable, Sized
from typing import Any, cast

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .epochs import EpochSampler, ResumableLoader

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

    The order of the training samples is a function of a seed, kept in checkpoints, and the epoch,
    so a run that is resumed from a checkpoint, also one of the middle of an epoch, goes on with the
    batches that were left.

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
        self._order_seed: int | None = None
        self._resumed = False

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
        if stage in (None, "fit"):
            self._resumed = False  # until a checkpoint is loaded

    def _load(self, names: Iterable[str]) -> dict[str, Dataset[Batch]]:
        """At least the splits of these names, made if need be."""
        raise NotImplementedError

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled batches of the training split."""
        return self._shuffled()

    def val_dataloader(self) -> DataLoader[Batch]:
        """Batches of the validation split, in order."""
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        """Batches of the test split, in order."""
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Batches of the test split, in order."""
        return self._loader("test")

    def state_dict(self) -> dict[str, Any]:
        """What decides the order of the training batches; nothing before a training."""
        return {} if self._order_seed is None else self._order()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the order of the training that wrote the state.

        A warning names what is not as it was then.
        """
        self._order_seed = state_dict["order_seed"]
        self._resumed = True
        # A test of a checkpoint reads no training batch.
        if self.trainer is not None and self.trainer.training:
            self._compare(state_dict)

    def _compare(self, saved: dict[str, Any]) -> None:
        found = self._order()
        changed = [
            f"{name} is {found[name]}, was {saved[name]}"
            for name in found
            if saved.get(name, found[name]) != found[name]
        ]
        if changed:
            warnings.warn(
                f"training resumes with other settings than those of the checkpoint: "
                f"{'; '.join(changed)}. The batches are not those that were left: from the middle "
                "of an epoch, the rest of it may repeat samples or leave some out. Pass the "
                "checkpoint's settings to go on exactly",
                stacklevel=3,
            )

    def _order(self) -> dict[str, Any]:
        """All that decides the order of training batches, in plain values for a checkpoint."""
        settings: dict[str, Any] = {
            "order_seed": self._order_seed,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "training samples": len(cast(Sized, self._dataset("train"))),
            "processes": 1 if self.trainer is None else self.trainer.world_size,
        }
        return {**settings, "seed": self.hparams["seed"]}

    def _new_order_seed(self) -> int:
        """The seed that torch was given last, as by ``seed_everything``."""
        seed = torch.initial_seed()
        # Unseeded processes would each have an order of their own.
        return seed if self.trainer is None else self.trainer.strategy.broadcast(seed)

    def _shuffled(self, numbered: bool = False) -> ResumableLoader:
        dataset = self._dataset("train")
        if self._order_seed is None or not self._resumed:
            self._order_seed = self._new_order_seed()
        return ResumableLoader(
            dataset,
            sampler=EpochSampler(
                len(cast(Sized, dataset)), self._order_seed, self._current_epoch, numbered
            ),
            drop_last=self.drop_last,
            batches_done=self._batches_done if self.trainer is not None else None,
            **self._settings(),
        )

    def _current_epoch(self) -> int | None:
        if self.trainer is None or not self.trainer.training:
            return None
        return self.trainer.current_epoch

    def _batches_done(self) -> int:
        assert self.trainer is not None
        loop = self.trainer.fit_loop
        epochs: Any = loop.epoch_progress
        if epochs.current.ready == epochs.current.processed:
            # Resumed at the last batch of an epoch, Lightning 2.6 does not count the start of the
            # next one, and would train it anew if it were resumed once more.
            epochs.increment_ready()
            epochs.increment_started()
        done = loop.batch_idx + 1
        _check_accumulation(done, self.trainer.accumulate_grad_batches)
        return done

    def _loader(self, name: str) -> DataLoader[Batch]:
        return DataLoader(self._dataset(name), **self._settings())

    def _settings(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
            "collate_fn": _hand_on,
            # Otherwise each iteration draws from torch's global generator, which is the model's.
            "generator": torch.Generator(),
        }

    def _dataset(self, name: str) -> Dataset[Batch]:
        if name not in self._datasets:
            raise RuntimeError(f"the {name} split is not loaded; call setup() first")
        return self._datasets[name]


def _check_accumulation(batches: int, accumulated: int) -> None:
    lost = batches % accumulated
    if lost:
        warnings.warn(
            f"the checkpoint was written after {lost} of accumulate_grad_batches={accumulated} "
            "batches, whose gradients no checkpoint holds: the next step of the optimizer goes "
            "without them. Resume from a checkpoint written after a step to go on exactly",
            stacklevel=2,
        )


def _hand_on(batch: Any) -> Any:
    """The collate function of a dataset whose ``__getitems__`` returns whole batches."""
    return batch
