"""Trains on sequences of 20,000 steps, each divided over two processes.

    python -m experiments.examples.long_sequences      # 2 min

Signals drift slowly, and a GRU follows them through noise that is as loud. Where a batch is small,
there is nothing to divide but time: with strategy="bppsa_chain" each process walks its half of the
steps, and keeps for the backward what belongs to that half alone.

Each training is a program of its own, in turns: PyTorch in one process, "bppsa" in one, and
"bppsa_chain" in two, all on the same cores. The memory is the most that one process has beyond what
it had before the first step.

The picture: the losses, what a step takes, and the memory of a process.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from experiments import style
from experiments.examples import side_by_side
from experiments.examples.side_by_side import Memory, Watch

# strategy, processes, name, colour
WAYS = {
    "stock": ("auto", 1, "PyTorch", style.STOCK),
    "bppsa": ("bppsa", 1, "bppsa", style.OURS),
    "chain": ("bppsa_chain", 2, "bppsa_chain,\n2 processes", style.GREEN),
}
HIDDEN, BATCH = 64, 4


class Drifts(IterableDataset):
    """Batches: signals under noise, and without, both (B, T, 1)."""

    def __init__(self, steps: int, count: int) -> None:
        self.steps, self.count = steps, count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(self.count):
            drift, noise = torch.randn(2, BATCH, self.steps, 1, generator=generator)
            signal = torch.sin(0.03 * drift.cumsum(1))
            yield signal + 0.7 * noise, signal


class Follower(pl.LightningModule):
    """At each step, an estimate of the signal there from all that was seen so far."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(1, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 1)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        seen, signal = batch
        states, _ = self.gru(seen)
        return (self.head(states) - signal).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def train(way: str, steps: int, count: int) -> dict[str, Any]:
    """This is what one copies: the model and the data are as ever."""
    strategy, processes, *_ = WAYS[way]
    torch.manual_seed(0)
    watch, memory = Watch(), Memory()
    settings = side_by_side.QUIET | {"devices": processes}
    trainer = pl.Trainer(
        strategy=strategy, max_epochs=1, callbacks=[memory, *watch.callbacks], **settings
    )
    trainer.fit(Follower(), DataLoader(Drifts(steps, count), batch_size=None))
    step = watch.timer.medians()["step"]
    return {"losses": watch.losses, "step": step, "bytes": memory.bytes}


def train_apart(way: str, steps: int, count: int) -> dict[str, Any]:
    """The same by a program of its own; Lightning starts the chain's second process there."""
    cores = max(1, torch.get_num_threads() // WAYS[way][1])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        subprocess.run(
            [
                sys.executable, "-m", "experiments.examples.long_sequences", "--train", way,
                "--sizes", str(steps), str(count), "--into", str(file),
            ],
            check=True, env={**os.environ, "OMP_NUM_THREADS": str(cores)},
        )  # fmt: skip
        return json.loads(file.read_text())


def draw(record: dict[str, Any], path: Path) -> None:
    title = f"A GRU over {record['T']:,} steps, divided over two processes"
    with side_by_side.picture(3, title, record, path) as axes:
        draw_panels(axes, {way: record[way] for way in WAYS})


def draw_panels(axes: Any, found: dict[str, Any]) -> None:
    """Losses over the steps, seconds of a step, and megabytes of a process."""
    names, colours = [w[2] for w in WAYS.values()], [w[3] for w in WAYS.values()]
    for width, way in zip((5, 3, 1), found, strict=True):  # one upon the other
        losses, (_, _, name, colour) = found[way]["losses"], WAYS[way]
        steps = range(1, len(losses) + 1)
        axes[0].plot(steps, losses, color=colour, linewidth=width, label=name.replace("\n", " "))
    axes[0].set(xlabel="step", ylabel="loss", title="The same losses", xticks=steps)
    axes[0].legend()
    seconds, bytes_ = ([each[key] for each in found.values()] for key in ("step", "bytes"))
    megabytes = [n / 2**20 for n in bytes_]
    for each, values, form in ((axes[1], seconds, "{:.2f} s"), (axes[2], megabytes, "{:.0f} MB")):
        side_by_side.draw_bars(each, dict(zip(names, values, strict=True)), colours, form)
    axes[1].set(ylabel="seconds", title="A step takes")
    axes[2].set(ylabel="megabytes", title="A process needs")


def parser() -> argparse.ArgumentParser:
    parser = side_by_side.parser(__doc__)
    # How it starts the programs of single trainings.
    parser.add_argument("--train", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    if asked.train:
        with side_by_side.quiet():
            found = train(asked.train, *asked.sizes)
        if int(os.environ.get("LOCAL_RANK", 0)) == 0:  # the chain's first process speaks for both
            asked.into.write_text(json.dumps(found))
        return
    steps, count, rounds = (1_000, 3, 1) if asked.quick else (20_000, 5, 2)
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, trainings in runs.items():
            trainings.append(train_apart(way, steps, count))
    found = {
        way: {key: median(r[key] for r in rs) for key in ("step", "bytes")}
        | {
            "losses": rs[0]["losses"],
            "speed_up": median(
                a["step"] / b["step"] for a, b in zip(runs["stock"], rs, strict=True)
            ),
        }
        for way, rs in runs.items()
    }
    print(f"{count} steps of {BATCH} sequences of {steps:,} steps, {HIDDEN} hidden units\n")
    for way, each in found.items():
        name = WAYS[way][2].replace("\n", " ")
        print(
            f"{name:<25}{each['step']:7.2f} s a step, {each['speed_up']:5.1f}x PyTorch;"
            f"{each['bytes'] / 2**20:6.0f} MB a process; last loss {each['losses'][-1]:.4f}"
        )
    results = {"T": steps, "B": BATCH, "H": HIDDEN, **found}
    side_by_side.keep("long_sequences", results, draw, asked)


if __name__ == "__main__":
    main()
