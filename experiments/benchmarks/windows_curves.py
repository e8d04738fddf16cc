"""Whole trainings in windows of time: do their losses part from a walk's further than two walks'?

    python -m experiments.benchmarks.windows_curves            # 8 seeds: 40 min on two cores
    python -m experiments.benchmarks.windows_curves --seeds 1 --cells RNN

Networks on characters, one sequence of 1,024 a step, are trained three times from each seed: by
"linear" with one thread, with two threads, and by "speculative" with one. Training amplifies
rounding, so that any two curves part; how far is a matter of chance, hence the seeds. Windows are
one more way to round if they part from the walks as far as these from each other.

"apart" is the largest difference of two losses over the steps, means of 50 steps each. Writes
windows_curves.json after each seed. (A trained GRU is soon walked, as it remembers more than an
eighth of 1,024 steps; an RNN stays in windows.)
"""

import argparse
import time
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import nn

from experiments import recording
from experiments.benchmarks import curves_report
from experiments.benchmarks.trained_layers import ALGORITHMS, happened
from experiments.benchmarks.trained_tasks import TASKS
from experiments.benchmarks.windows import WALK, WINDOWS
from experiments.benchmarks.windows_trained import train
from experiments.compare.summary import running_mean

T, STEPS, SMOOTHED = 1024, 2000, 50  # of a sequence, of a training, of a running mean
CELLS = ("RNN", "GRU", "LSTM")
ONE, TWO = "linear, 1 thread", "linear, 2 threads"
WAYS = {ONE: (WALK, 1), TWO: (WALK, 2), WINDOWS: (WINDOWS, 1)}


def trained(cell: str, seed: int, kind: str, threads: int, steps: int) -> tuple[list[float], Any]:
    """The losses of a training, and what became of the windows of each step."""
    [task] = (task for task in TASKS if task.name == f"characters_{cell.lower()}")
    losses: list[float] = []
    notes: list[dict[str, Any]] = []

    def after(step: int, network: nn.Module, loss: float) -> None:
        losses.append(loss)
        if kind == WINDOWS:
            notes.append(happened(network))

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        asked = replace(task, T=T, B=1, steps=steps - 1, algorithm=ALGORITHMS[kind])
        train(asked, lambda step, network: None, after, seed)
    finally:
        torch.set_num_threads(before)
    return losses, notes


def row(cell: str, seed: int, steps: int) -> dict[str, Any]:
    """One network, from one seed: how far each two of its trainings part."""
    smooth: dict[str, list[float]] = {}
    notes: list[dict[str, Any]] = []
    for way, (kind, threads) in WAYS.items():
        losses, seen = trained(cell, seed, kind, threads, steps)
        smooth[way] = running_mean(losses, SMOOTHED)
        notes += seen
    pairs = combinations(WAYS, 2)
    return {
        "cell": cell,
        "seed": seed,
        "steps": steps,
        "apart": {
            f"{a} / {b}": max(abs(x - y) for x, y in zip(smooth[a], smooth[b], strict=True))
            for a, b in pairs
        },
        "loss": {way: losses[-1] for way, losses in smooth.items()},
        "steps_in_windows": sum("windows" in note for note in notes),
        "steps_that_missed": sum(note.get("missed", 0) > 0 for note in notes),
    }


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=8, help="how many (default: 8)")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS, metavar="CELL")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"(default: {STEPS:,})")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    path = recording.folder(asked.record) / "windows_curves.json"
    rows: list[dict[str, Any]] = []
    for seed in range(asked.seeds):
        for cell in asked.cells:
            start = time.perf_counter()
            rows.append(row(cell, seed, asked.steps))
            print(f"{cell}, seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
        recording.write(path, {"T": T, "B": 1, "smoothed_over": SMOOTHED, "rows": rows})
    print(curves_report.table(rows))
    print(f"record: {path}")


if __name__ == "__main__":
    main()
