"""What a calibration is worth: its choices, the shipped table's, and the best ones, size by size.

    python -m experiments.benchmarks.regret [--record]

Calibrates this machine into a folder of its own. Then every size of the grid of `recurrent_cpu` is
computed by the fused kernels and by PyTorch, in turns, whatever any table says. The regret of a
choice is its time over that of the faster of the two, less one. Writes calibration_cpu.json and
prints, for the calibrated table and for the shipped one: mean and worst regret, and the sizes that
run slower than stock PyTorch. A size where the calibrated table chose what came out slower by more
than NOISE is measured once more, in more pairs, and that counts.

Letters: B batch, T steps, H hidden.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch

import bppsa_lightning as bl
from bppsa_lightning.calibration import pairs
from bppsa_lightning.calibration.fit_cpu import Size
from bppsa_lightning.planner import hand_over, machine, tables
from experiments import recording
from experiments.benchmarks.recurrent_cases import OPERATORS
from experiments.benchmarks.recurrent_cpu import GRID

NOISE = 0.03
Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.2, help="for a size (default 0.2)")
    parser.add_argument("--longest", type=int, default=1000, help="steps, at most (default 1000)")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[tables.FOLDER] = folder
        machine.forget()
        sizes = [
            Size(cell, T, B, H) for cell in OPERATORS for B, T, H, _ in GRID if asked.longest >= T
        ]
        shipped = [kept_here(size) for size in sizes]
        start = time.perf_counter()
        report = bl.calibrate(progress=False)
        took = time.perf_counter() - start
        calibrated = [kept_here(size) for size in sizes]
        table = tables.read_user(machine.this_cpu())
    print(f"{report}\n")
    rows = list(measured(sizes, shipped, calibrated, asked.seconds))
    results = {
        "calibration": {"seconds": took, "report": report.splitlines()[:-1], "table": table},
        "threads": torch.get_num_threads(),
        **{name: summary(rows, name) for name in ("shipped", "calibrated")},
        "rows": rows,
    }
    for name in ("shipped", "calibrated"):
        print(f"{name}: {results[name]}")
    path = recording.folder(asked.record) / "calibration_cpu.json"
    recording.write(path, results)
    print(f"record: {path}")


def kept_here(size: Size) -> bool:
    """Whether the planner computes a size by the fused kernels."""
    return not hand_over.pytorch_is_faster(OPERATORS[size.cell], *size[1:])


def measured(
    sizes: list[Size], shipped: list[bool], calibrated: list[bool], seconds: float
) -> Iterator[Row]:
    """A row for each size. Where the calibrated choice came out slower, the second look counts."""
    for size, before, now in zip(sizes, shipped, calibrated, strict=True):
        row = row_of(size, before, now, pairs.pair(size, seconds))
        if row["calibrated_regret"] > NOISE:
            row = row_of(size, before, now, pairs.pair(size, 5 * seconds, turns=21)) | {
                "again": True
            }
        print(row, flush=True)
        yield row


def row_of(size: Size, shipped: bool, calibrated: bool, pair: pairs.Pair) -> Row:
    row = {**size._asdict(), "ours": pair.ours, "stock": pair.stock}
    for name, here in (("shipped", shipped), ("calibrated", calibrated)):
        row |= {name: here, f"{name}_regret": (pair.ours if here else pair.stock) / min(pair) - 1}
    return row


def summary(rows: list[Row], name: str) -> dict[str, Any]:
    """Of one table's choices."""
    regrets = [row[f"{name}_regret"] for row in rows]
    slower = [row for row in rows if row[name] and row["ours"] > (1 + NOISE) * row["stock"]]
    return {
        "mean_regret": sum(regrets) / len(regrets),
        "worst_regret": max(regrets),
        "computed_here": sum(row[name] for row in rows),
        "slower_than_stock": [[row[key] for key in ("cell", "T", "B", "H")] for row in slower],
    }


if __name__ == "__main__":
    main()
