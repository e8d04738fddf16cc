"""Whole training steps of the bitstream RNN through Trainer, with data loading and optimizer."""

import logging
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import lightning.pytorch as pl
import torch

from bppsa_lightning.datasets import BitstreamDataModule
from experiments.train.bitstream_rnn import BitstreamRNN


def compare(device: torch.device, steps: int, T: int = 1000, rounds: int = 3) -> dict[str, Any]:
    """Seconds a step of stock and of "bppsa", in turns: B=16, H=20, the first 20 steps left out."""
    taken: dict[str, list[float]] = {"auto": [], "bppsa": []}
    with _quietly(), tempfile.TemporaryDirectory() as folder:
        data = BitstreamDataModule(data_dir=folder, steps=T, num_samples=16 * (steps + 20))
        for strategy in [*taken] * rounds:
            pl.seed_everything(0, verbose=False)
            clock = Clock(skipped=20)
            trainer = pl.Trainer(
                strategy=strategy, accelerator=device.type, devices=1, max_steps=steps + 20,
                callbacks=[clock], logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
                gradient_clip_val=1.0, default_root_dir=folder,
            )  # fmt: skip
            trainer.fit(BitstreamRNN(lr=1e-4), data)
            taken[strategy].append(clock.seconds)
    stock, ours = (median(seconds) for seconds in taken.values())
    ratio = median(a / b for a, b in zip(*taken.values(), strict=True))
    print(f"stock {stock * 1e3:.3f} ms, bppsa {ours * 1e3:.3f} ms, {ratio:.2f}x", flush=True)
    return {"B": 16, "T": T, "H": 20, "steps": steps, "ours": ours, "stock": stock, "ratio": ratio}


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what each Trainer says of itself."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


class Clock(pl.Callback):
    """Seconds a training step, over all steps but the first `skipped`."""

    def __init__(self, skipped: int) -> None:
        self.skipped, self.steps = skipped, 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.steps += 1
        if self.steps == self.skipped:
            self.start = self._now(trainer)

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.seconds = (self._now(trainer) - self.start) / (self.steps - self.skipped)

    @staticmethod
    def _now(trainer: pl.Trainer) -> float:
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()
