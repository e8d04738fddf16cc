"""Recurrent layers on the CPU: forward and backward by scan, by stock PyTorch, and by JAX.

    python -m experiments.benchmarks.recurrent_cpu                          # TABLE, with JAX
    python -m experiments.benchmarks.recurrent_cpu --grid --seconds 0.25    # GRID, coarser
    python -m experiments.benchmarks.recurrent_cpu --again                  # where close to stock
    python -m experiments.benchmarks.recurrent_cpu --cells LSTM --sizes 16,1000,20,1

One step is zero_grad, forward, backward, parameter gradients included, on the same input and
weights. A pair is a turn of ours, then one of stock (then one of JAX, where it is installed), see
timing.py. Printed are medians over pairs, and the median of the pairwise ratios (above 1: ours is
faster). Where the layer is left to PyTorch, the table says so.

The gradient of every output flows in. (A loss on the last state alone would flatter us: its
gradient fades into denormal numbers, which slow stock PyTorch down up to 15 times on Intel cores.)
JAX's step is not split. Of the grid, a size that is scanned and came out at less than CLOSE is
measured again, in more pairs, and that counts: where a step takes seconds, the first look is one
pair, of a host that may have been disturbed. Peak memory: see recurrent_memory.py. Writes
benchmark_recurrent_cpu.json and .png (of the grid: grid_recurrent_cpu).

Letters: B batch, T steps, H hidden, I input.
"""

import argparse
from typing import Any

import torch

from experiments import recording
from experiments.benchmarks import recurrent_memory, recurrent_plots, recurrent_report
from experiments.benchmarks.recurrent_cases import Case
from experiments.benchmarks.recurrent_rows import Row, Size, add_arguments, measure

CPU = torch.device("cpu")
# B, T, H, I
TABLE = [(16, 1000, 20, 1), (1, 10000, 20, 1), (16, 1000, 128, 128), (16, 1000, 128, 1)]
TABLE += [(16, T, 20, 1) for T in (1, 10, 100, 10000)]
TABLE += [(B, 1000, 20, 1) for B in (1, 64, 256)]
GRID = [
    (B, T, H, H)
    for H in (1, 8, 20, 64, 128, 256, 512)
    for T in (1, 10, 100, 1000)
    for B in (1, 2, 16, 64, 256)
]
CLOSE = 1.05
PAIRS_OF_CLOSE = 5  # at least
SECONDS_OF_CLOSE = 5.0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser, seconds=6.0)
    parser.add_argument("--grid", action="store_true", help="every size of GRID, without JAX")
    parser.add_argument(
        "--again", action="store_true", help="of the grid's results, the sizes close to stock"
    )
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    grid = asked.grid or asked.again
    folder, name = recording.folder(asked.record), "grid" if grid else "benchmark"
    path = folder / f"{name}_recurrent_cpu.json"
    if asked.again:
        rows = recording.read(path.stem, folder)["rows"]
    else:
        rows = measured([Case(c, *size) for size in sizes(asked) for c in asked.cells], asked)
    results: dict[str, Any] = {"rows": looked_at_again(rows, asked) if grid else rows}
    if asked.sizes:
        return
    if not grid:
        results["peak_memory"] = [recurrent_memory.row(cell, CPU) for cell in asked.cells]
    recurrent_plots.draw(recording.write(path, results), path.with_suffix(".png"))
    print(f"record: {path}, .png")


def sizes(asked: argparse.Namespace) -> list[Size]:
    return asked.sizes or (GRID if asked.grid else TABLE)


def measured(cases: list[Case], asked: argparse.Namespace) -> list[Row]:
    """A row for each case, printed."""
    print(recurrent_report.heading())
    rows = []
    for case in cases:
        rows.append(measure(case, CPU, asked.seconds, asked.pairs, jax=not asked.grid))
        print(recurrent_report.line(rows[-1]), flush=True)
    return rows


def looked_at_again(rows: list[Row], asked: argparse.Namespace) -> list[Row]:
    """The rows, those of scanned sizes close to stock or slower measured anew, in more pairs."""
    print(f"\nagain, where stock is less than {CLOSE} times as long")
    looked = []
    for row in rows:
        if row["scanned"] and row["ratio_stock"]["both"] < CLOSE:
            case = Case(*(row[name] for name in ("cell", "B", "T", "H", "I")))
            row = measure(case, CPU, SECONDS_OF_CLOSE, asked.pairs, PAIRS_OF_CLOSE)
            row["again"] = True
            print(recurrent_report.line(row), flush=True)
        looked.append(row)
    return looked


if __name__ == "__main__":
    main()
