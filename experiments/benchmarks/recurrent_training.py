"""Whole training steps of the bitstream RNN through Trainer, with data loading and optimizer.

    python -m experiments.benchmarks.recurrent_training --device cuda --steps 100

RNN, GRU and LSTM of 20 units on batches of 16 sequences: a Trainer with strategy="bppsa" and one
with stock PyTorch, in turns. Writes training_<name of the device>.json.
"""

import argparse
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
from typing_extensions import override

from bppsa_lightning.datasets import BitstreamDataModule
from experiments import recording
from experiments.benchmarks.recurrent_cases import CELLS
from experiments.train.bitstream_rnn import BitstreamRNN


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--lengths", nargs="+", default=[1000], type=int, help="of the sequences")
    parser.add_argument("--steps", type=int, default=100, help="counted of each training")
    parser.add_argument("--rounds", type=int, default=3, help="of both trainings (default 3)")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    gpu = torch.cuda.get_device_name() if asked.device.type == "cuda" else "cpu"
    path = recording.folder(asked.record) / f"training_{recording.file_name(gpu)}.json"
    rows = []
    for T in asked.lengths:
        for cell in asked.cells:
            rows.append(compare(asked.device, asked.steps, T, asked.rounds, cell))
            recording.write(path, {"rows": rows})
    print(f"record: {path}")


def compare(
    device: torch.device, steps: int, T: int = 1000, rounds: int = 3, cell: str = "RNN"
) -> dict[str, Any]:
    """Seconds a step of stock and of "bppsa", in turns: B=16, H=20, the first 20 steps left out."""
    taken: dict[str, list[float]] = {"auto": [], "bppsa": []}
    with quietly(), tempfile.TemporaryDirectory() as folder:
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
            trainer.fit(BitstreamRNN(lr=1e-4) if cell == "RNN" else AnyCell(cell), data)
            taken[strategy].append(clock.seconds)
    stock, ours = (median(seconds) for seconds in taken.values())
    ratio = median(a / b for a, b in zip(*taken.values(), strict=True))
    print(
        f"{cell} T={T}: stock {stock * 1e3:.3f} ms, bppsa {ours * 1e3:.3f} ms, {ratio:.2f}x",
        flush=True,
    )
    sizes = {"cell": cell, "B": 16, "T": T, "H": 20, "steps": steps}
    return sizes | {"ours": ours, "stock": stock, "ratio": ratio}


class AnyCell(BitstreamRNN):
    """The bitstream RNN with another cell in the RNN's place."""

    def __init__(self, cell: str) -> None:
        super().__init__(lr=1e-4)
        self.rnn = CELLS[cell](1, self.rnn.hidden_size, batch_first=True)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, last = self.rnn(x)
        state = last[0] if isinstance(last, tuple) else last
        return self.classify(state[0])


@contextmanager
def quietly() -> Iterator[None]:
    """Without what each Trainer says of itself, and of what it runs on."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*treespec.*is deprecated")  # Lightning's own
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


if __name__ == "__main__":
    main()
