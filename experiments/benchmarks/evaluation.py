"""`Trainer.test` alone, under "bppsa" and under stock PyTorch: networks over time, pruned VGG-11.

    python -m experiments.benchmarks.evaluation
    python -m experiments.benchmarks.evaluation --only RNN "VGG-11, 3% left" --record

Each network is tested over some batches that lie in memory, by the one Trainer and by the other in
turns: seconds a batch, from the end of the first batches to the end of the last. RNN, GRU and LSTM
are the bitstream experiment's, 20 units on 16 sequences of 1,000 steps; VGG-11 takes 32 images, its
layers' smallest weights pruned. Writes evaluation_cpu.json.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from typing_extensions import override

from experiments import recording
from experiments.benchmarks.pruned_vgg11 import network
from experiments.benchmarks.recurrent_training import AnyCell, quietly

SEQUENCES, IMAGES = (16, 1000, 1), (32, 3, 32, 32)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{cell: (partial(AnyCell, cell), SEQUENCES) for cell in ("RNN", "GRU", "LSTM")},
    "VGG-11, 3% left": (partial(network, "stock", 0.03), IMAGES),
    "VGG-11, 10% left": (partial(network, "stock", 0.1), IMAGES),
}
SKIPPED = 5  # batches at the beginning, which find nothing in the caches


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NETWORK")
    parser.add_argument("--batches", type=int, default=100, help="counted of each run")
    parser.add_argument("--rounds", type=int, default=7, help="of both Trainers (default 7)")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    rows = [compare(name, asked.batches, asked.rounds) for name in asked.only]
    path = recording.folder(asked.record) / "evaluation_cpu.json"
    recording.write(path, {"batches": asked.batches, "rows": rows})
    print(f"record: {path}")


def compare(name: str, batches: int, rounds: int) -> dict[str, Any]:
    """Seconds a batch of both, the ratio, and how far the losses of all batches are apart."""
    make, shape = CASES[name]
    torch.manual_seed(0)
    model = Tested(make())
    batch = torch.randn(shape), torch.randint(10, shape[:1])
    loader = DataLoader([batch] * (SKIPPED + batches), batch_size=None)
    seconds: dict[str, list[float]] = {"auto": [], "bppsa": []}
    losses: dict[str, float] = {}
    with quietly():
        for strategy in [*seconds] * rounds:
            clock = Clock()
            trainer = pl.Trainer(
                strategy=strategy, accelerator="cpu", devices=1, callbacks=[clock], logger=False,
                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            [found] = trainer.test(model, loader, verbose=False)
            seconds[strategy].append(clock.seconds)
            losses[strategy] = found["loss"]
    stock, ours = (median(taken) for taken in seconds.values())
    ratio = median(a / b for a, b in zip(*seconds.values(), strict=True))
    apart = abs(losses["auto"] - losses["bppsa"]) / abs(losses["auto"])
    print(
        f"{name}: stock {stock * 1e3:.3f} ms, bppsa {ours * 1e3:.3f} ms, {ratio:.2f}x", flush=True
    )
    return {"network": name, "stock": stock, "ours": ours, "ratio": ratio, "apart": apart}


class Tested(pl.LightningModule):
    """A network and its loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @override
    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, target = batch
        self.log("loss", cross_entropy(self.network(x), target), batch_size=len(x))


class Clock(pl.Callback):
    """Seconds a batch, over all batches but the first ones."""

    @override
    def on_test_batch_end(
        self, trainer: pl.Trainer, model: Any, outputs: Any, batch: Any, index: int, _: int = 0
    ) -> None:
        if index == SKIPPED - 1:
            self._start = time.perf_counter()
        elif index >= SKIPPED:
            self.seconds = (time.perf_counter() - self._start) / (index - SKIPPED + 1)


if __name__ == "__main__":
    main()
