"""Recurrent layers on a GPU, beside cuDNN: the paper's sizes, every plan, and options.

    python -m experiments.benchmarks.recurrent_gpu --record                 # less than 10 minutes
    python -m experiments.benchmarks.recurrent_gpu --loss every --minutes 3
    python -m experiments.benchmarks.recurrent_gpu --only rows --minutes 3
    python -m experiments.benchmarks.recurrent_gpu --cells GRU --sizes 16,1000,20,1

The loss is the paper's, on the last state; with --loss every, a gradient of every output flows in.
Each row is measured as in recurrent_cpu.py, with CUDA events, and adds every plan of the backward
as bare operator calls ("plans", to which fit_planner.py fits the planner); and, where the planner
leaves the layer to PyTorch, what it takes if scanned all the same ("scan"). After the paper's sizes
("rows"): options of the layers; a step replayed from a CUDA graph; a training through Trainer; peak
memory; and, last of all, sequences longer than cuDNN takes. Stock has torch's own settings, with
which cuDNN may use TF32; ours is IEEE float32. Writes <name of the GPU>.json, row by row (with
--loss every: <name>_every.json, of "rows" only), and, where matplotlib is installed, .png
(elsewhere: recurrent_plots.py). With --only, the record keeps what it has of the other parts.

Letters: B batch, T steps, H hidden, I input.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from experiments import recording
from experiments.benchmarks import (
    recurrent_memory,
    recurrent_plots,
    recurrent_report,
    recurrent_training,
    timing,
)
from experiments.benchmarks.recurrent_cases import Case, Replay, pair
from experiments.benchmarks.recurrent_rows import Row, Size, add_arguments, measure

# B, T, H, I: the paper's sweeps over T and over B, then larger states.
PAPER = [(16, T, 20, 1) for T in (10, 30, 100, 300, 1000, 3000, 10000, 30000)]
PAPER += [(B, 1000, 20, 1) for B in (2, 4, 8, 32, 64, 128, 256)]
PAPER += [(16, 1000, H, 1) for H in (8, 32, 48, 64, 96, 128, 192, 256)]
PAPER += [(B, 1000, H, 1) for B in (64, 256) for H in (64, 128)]
# What the planner has no figures for.
OPTIONS: list[tuple[Size, dict[str, Any]]] = [
    ((16, 1000, 20, 1), {"dtype": torch.float64}),
    ((16, 1000, 32, 1), {"dtype": torch.float64}),
    ((16, 1000, 20, 1), {"autocast": torch.float16}),
    ((16, 1000, 64, 1), {"autocast": torch.float16}),
    ((16, 1000, 20, 1), {"num_layers": 2}),
    ((16, 1000, 20, 1), {"bidirectional": True}),
    ((16, 1000, 64, 1), {"bidirectional": True}),
    ((16, 1000, 20, 1), {"lengths": "different"}),
    ((64, 300, 32, 8), {"lengths": "different"}),
    ((16, 1000, 20, 1), {"proj_size": 10}),
    ((32, 259, 20, 38), {}),
    ((16, 1000, 64, 64), {}),
    ((16, 1000, 128, 128), {}),
]
LONG = (16, 70000, 20, 1)
PARTS = ("rows", "options", "graphs", "training", "peak_memory", "long")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser, seconds=1.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--loss", default="last", choices=["last", "every"])
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts of the record")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all rows (default 8)")
    parser.add_argument("--steps", type=int, default=300, help="of a training (default 300)")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    device = torch.device(asked.device)
    torch.cuda.set_device(device.index or 0)
    run(asked, device)


def run(asked: argparse.Namespace, device: torch.device) -> None:
    """Measures what is asked on a device."""
    budget = Budget(asked.minutes * 60, asked.seconds)
    sweeps = [Case(cell, *size, loss=asked.loss) for cell in asked.cells for size in sizes(asked)]
    if asked.sizes:
        measured("rows", sweeps, device, asked, budget)
        return
    parts = asked.only or (PARTS if asked.loss == "last" else PARTS[:1])
    options = optional(asked.cells) if "options" in parts else []
    long = [Case(cell, *LONG, loss="last") for cell in asked.cells] if "long" in parts else []
    later = len(options) + len(long)
    name = recording.file_name(torch.cuda.get_device_name(device))
    session = Session(asked, f"{name}_every" if asked.loss == "every" else name)
    measure_it: dict[str, Callable[[], Any]] = {
        "options": lambda: measured("options", options, device, asked, budget, len(long), session),
        "graphs": lambda: [replayed(cell, device, asked.seconds) for cell in asked.cells],
        "training": lambda: recurrent_training.compare(device, asked.steps),
        "peak_memory": lambda: [recurrent_memory.row(cell, device) for cell in asked.cells],
        # The last: cuDNN's failure can take the context along.
        "long": lambda: measured("long", long, device, asked, budget, session=session),
    }
    if "rows" in parts:
        session.keep("rows", measured("rows", sweeps, device, asked, budget, later, session))
    for part in PARTS:
        if part in parts and part in measure_it:
            session.add(part, measure_it[part])


def sizes(asked: argparse.Namespace) -> list[Size]:
    return asked.sizes or list(dict.fromkeys(PAPER))


def optional(cells: list[str]) -> list[Case]:
    """Every row of OPTIONS for every cell that has the option."""
    return [
        Case(cell, *size, loss="last", settings=settings)
        for size, settings in OPTIONS
        for cell in cells
        if cell == "LSTM" or "proj_size" not in settings
    ]


class Budget:
    """Seconds for each row: `each`, or less where not all of `whole` seconds are left for all."""

    def __init__(self, whole: float, each: float) -> None:
        self.end, self.each = time.perf_counter() + whole, each

    def share(self, rows: int) -> float:
        """Of the next row, with `rows` still to come, that one included."""
        return min(self.each, max(self.end - time.perf_counter(), 0.0) / rows)


class Session:
    """A GPU's record: each part is kept at once, and one that fails takes no other along."""

    def __init__(self, asked: argparse.Namespace, name: str) -> None:
        self.path: Path = recording.folder(asked.record) / f"{name}.json"
        self.results: dict[str, Any] = {}
        if asked.only and self.path.exists():
            self.results = json.loads(self.path.read_text())
            del self.results["environment"]

    def add(self, part: str, measure_it: Callable[[], Any]) -> None:
        """Measures a part and keeps it, or why it failed."""
        print(f"\n{part.replace('_', ' ')}")
        try:
            self.keep(part, measure_it())
        except (RuntimeError, subprocess.CalledProcessError) as error:
            failure = first_line(error)
            print(failure)
            self.keep(f"{part}_fail", failure)

    def keep(self, part: str, found: Any) -> None:
        """Writes the record anew, with a part more, and its picture."""
        record = self.write(part, found)
        if "rows" in record:
            recurrent_plots.draw(record, self.path.with_suffix(".png"))
        print(f"record: {self.path}, .png")

    def write(self, part: str, found: Any) -> dict[str, Any]:
        """Writes the record anew, with a part more or more of a part, and returns it."""
        self.results[part] = found
        return recording.write(self.path, self.results)


def measured(
    part: str,
    cases: list[Case],
    device: torch.device,
    asked: argparse.Namespace,
    budget: Budget,
    later: int = 0,
    session: Session | None = None,
) -> list[Row]:
    """A row for each case, printed.

    A case that fails is told, unless it takes the device along.

    Args:
        part: of the record; "rows" have each plan of the backward beside the layer.
        budget: of the time.
        later: rows that share the budget after these.
        session: which keeps each row as soon as it is measured, and what failed.
    """
    print(recurrent_report.heading())
    rows: list[Row] = []
    failed: list[Row] = []
    for i, case in enumerate(cases):
        seconds = budget.share(len(cases) - i + later)
        try:
            rows.append(
                measure(case, device, seconds, asked.pairs, plans=part == "rows", scan=True)
            )
            print(recurrent_report.line(rows[-1]), flush=True)
        except RuntimeError as error:
            failed.append(case.described() | {"fails": first_line(error)})
            print(failed[-1], flush=True)
            if device.type == "cuda":
                torch.cuda.synchronize()  # raises if no kernel can run any more
        if session is not None:
            session.write(part, rows)
            if failed:
                session.write(f"{part}_failed", failed)
    return rows


def first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def replayed(cell: str, device: torch.device, seconds: float) -> Row:
    """A whole step from a CUDA graph, at the paper's size: what it takes without the host."""
    case = Case(cell, 16, 1000, 20, loss="last")
    row, ways = case.described(), {}
    for who, step in zip(("ours", "stock"), pair(case, device), strict=True):
        try:
            ways[who] = Replay(step)
        except RuntimeError as error:
            row[f"{who}_fails"] = first_line(error)
    row |= timing.measure(ways, seconds, most=11) if ways else {}
    print({key: row[key] for key in row if key in ("cell", "ours", "stock", "ratio_stock")})
    return row


if __name__ == "__main__":
    main()
