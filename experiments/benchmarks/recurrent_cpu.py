"""Recurrent layers: forward and backward by scan against stock PyTorch, and JAX where installed.

    python experiments/benchmark_recurrent.py                      # the table of the README
    python experiments/benchmark_recurrent.py --grid --seconds 0.25  # every size of GRID, coarser
    python experiments/benchmark_recurrent.py --again              # the grid's record, where close
    python experiments/benchmark_recurrent.py --cells LSTM --sizes 16,1000,20,1 --no-record
    python experiments/benchmark_recurrent.py --device cuda        # the paper's grid, < 10 minutes

One step is zero_grad, forward, backward, parameter gradients included, on the same input and
weights. A pair is a turn of ours, then one of stock (then one of JAX), see turns.py. Printed are
medians over pairs, and the median of the pairwise ratios (above 1: ours is faster). Where the layer
is left to PyTorch, the table says so.

On the CPU the gradient of every output flows in. (A loss on the last state alone would flatter us:
its gradient fades into denormal numbers, which slow stock PyTorch down up to 15 times on Intel
cores.) JAX's step is not split. Of the grid, a size that is scanned and came out at less than CLOSE
is measured again, in more pairs, and that counts: where a step takes seconds, the first look is one
pair, of a host that may have been disturbed. Peak memory: see recurrent_memory.py. Writes
experiments/records/benchmark_recurrent_cpu.json and .png (with --grid: grid_…).

On a GPU the loss is the paper's, on the last state, and each row adds every plan of the backward as
bare operator calls ("plans", to which fit_planner.py fits the planner); and, where the planner
leaves the layer to PyTorch, what it takes if scanned all the same ("scan"). After the grid: options
of the layers; a step replayed from a CUDA graph; a training through Trainer; peak memory; and, last
of all, sequences longer than cuDNN takes. Stock has torch's own settings, with which cuDNN may
use TF32; ours is IEEE float32. Writes experiments/records/<name of the GPU>.json and, where
matplotlib is installed, .png (elsewhere: recurrent_pictures.py).

Letters: B batch, T steps, H hidden, I input.
"""

import argparse
import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import recurrent_jax
import recurrent_memory
import recurrent_pictures
import recurrent_training
import torch
import turns
from recurrent_ways import CELLS, Case, OperatorStep, Replay, name_of, pair, scanned

import bppsa_lightning as bl
from bppsa_lightning.planner import gpu

Row = dict[str, Any]
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
# On a GPU: the paper's sweeps over T and over B, then larger states.
PAPER = [(16, T, 20, 1) for T in (10, 30, 100, 300, 1000, 3000, 10000, 30000)]
PAPER += [(B, 1000, 20, 1) for B in (2, 4, 8, 32, 64, 128, 256)]
PAPER += [(16, 1000, H, 1) for H in (8, 32, 48, 64, 96, 128, 192, 256)]
PAPER += [(B, 1000, H, 1) for B in (64, 256) for H in (64, 128)]
# What the planner has no figures for.
OPTIONS: list[tuple[tuple[int, int, int, int], dict[str, Any]]] = [
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


def main(arguments: list[str] | None = None) -> None:
    asked = parsed(arguments)
    device = torch.device(asked.device)
    if device.type == "cuda":
        return on_gpu(asked, device)
    if asked.again:
        rows = json.loads((record.RECORDS / "grid_recurrent_cpu.json").read_text())["rows"]
    else:
        cases = [Case(cell, *size) for size in sizes(asked) for cell in asked.cells]
        rows = measured(cases, device, asked)
    grid = asked.grid or asked.again
    results: dict[str, Any] = {"rows": looked_at_again(rows, device, asked) if grid else rows}
    if not (asked.sizes or grid):
        results["peak_memory"] = [recurrent_memory.row(cell, device) for cell in asked.cells]
    kept(asked, f"{'grid' if grid else 'benchmark'}_recurrent_{device.type}", results)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cells", nargs="*", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--sizes", nargs="*", help="B,T,H,I instead of the table; no record")
    parser.add_argument("--grid", action="store_true", help="every size of GRID, without JAX")
    parser.add_argument(
        "--again", action="store_true", help="of the grid's record, the sizes close to stock"
    )
    parser.add_argument("--pairs", type=int, default=11, help="at most, for a size (default 11)")
    parser.add_argument("--seconds", type=float, help="for a size (default 6; on a GPU 1)")
    parser.add_argument("--minutes", type=float, default=8.0, help="on a GPU, for all (default 8)")
    parser.add_argument("--steps", type=int, default=300, help="of a training (default 300)")
    parser.add_argument("--no-record", action="store_true", help="print only")
    asked = parser.parse_args(arguments)
    if asked.seconds is None:
        asked.seconds = 6.0 if asked.device == "cpu" else 1.0
    return asked


def sizes(asked: argparse.Namespace) -> list[tuple[int, ...]]:
    if asked.sizes:
        return [tuple(map(int, size.split(","))) for size in asked.sizes]
    if asked.device != "cpu":
        return list(dict.fromkeys(PAPER))
    return GRID if asked.grid else TABLE


def on_gpu(asked: argparse.Namespace, device: torch.device) -> None:
    torch.cuda.set_device(device)
    budget = Budget(asked.minutes * 60, asked.seconds)
    grid = [Case(cell, *size, loss="last") for cell in asked.cells for size in sizes(asked)]
    if asked.sizes:
        measured(grid, device, asked, budget, plans=True)
        return
    options = [Case(*case, loss="last", settings=settings) for case, settings in optional(asked)]
    long = [Case(cell, *LONG, loss="last") for cell in asked.cells]
    left = len(options) + len(long)
    name = name_of_gpu(torch.cuda.get_device_name(device))
    results: dict[str, Any] = {"rows": measured(grid, device, asked, budget, left, plans=True)}
    kept(asked, name, results)

    def add(part: str, title: str, measure_it: Callable[[], Any]) -> None:
        """Each part is kept at once, and one that fails takes no other along."""
        print(f"\n{title}")
        try:
            results[part] = measure_it()
        except (RuntimeError, subprocess.CalledProcessError) as error:
            results[f"{part}_fail"] = str(error).splitlines()[0]
            print(results[f"{part}_fail"])
        kept(asked, name, results)

    add("options", "options", lambda: measured(options, device, asked, budget, len(long)))
    add(
        "graphs",
        "a step of B=16 T=1000 H=20, replayed from a CUDA graph",
        lambda: [replayed(cell, device, asked.seconds) for cell in asked.cells],
    )
    add(
        "training",
        "a training step of bitstream_rnn through Trainer, B=16 T=1000 H=20",
        lambda: recurrent_training.compare(device, asked.steps),
    )
    add(
        "peak_memory",
        "peak memory",
        lambda: [recurrent_memory.row(cell, device) for cell in asked.cells],
    )
    # The last: cuDNN's failure can take the context along.
    add("long", "longer than cuDNN takes", lambda: measured(long, device, asked, budget))


def name_of_gpu(name: str) -> str:
    """ "NVIDIA H100 80GB HBM3" as the name of a file: "nvidia_h100_80gb_hbm3"."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def optional(asked: argparse.Namespace) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Cell and sizes, and settings, of every row of OPTIONS."""
    return [
        ((cell, *size), settings)
        for size, settings in OPTIONS
        for cell in asked.cells
        if cell == "LSTM" or "proj_size" not in settings
    ]


class Budget:
    """Seconds for each row: `each`, or less where not all of `whole` seconds are left for all."""

    def __init__(self, whole: float, each: float) -> None:
        self.end, self.each = time.perf_counter() + whole, each

    def share(self, rows: int) -> float:
        """Of the next row, with `rows` still to come, that one included."""
        return min(self.each, max(self.end - time.perf_counter(), 0.0) / rows)


def measured(
    cases: list[Case],
    device: torch.device,
    asked: argparse.Namespace,
    budget: Budget | None = None,
    later: int = 0,
    plans: bool = False,
) -> list[Row]:
    """A row for each case, printed.

    Args:
        budget: of the time; without it each case takes `asked.seconds`.
        later: rows that share the budget after these.
        plans: with each plan of the backward beside the layer.
    """
    print("milliseconds, forward + backward with parameter gradients; x: stock / ours, JAX / ours")
    print(recurrent_pictures.heading())
    rows = []
    for i, case in enumerate(cases):
        seconds = asked.seconds if budget is None else budget.share(len(cases) - i + later)
        rows.append(measure(case, device, seconds, asked, plans))
        print(recurrent_pictures.line(rows[-1]), flush=True)
    return rows


def looked_at_again(rows: list[Row], device: torch.device, asked: argparse.Namespace) -> list[Row]:
    """The rows, those of scanned sizes close to stock or slower measured anew, in more pairs."""
    print(f"\nagain, where stock is less than {CLOSE} times as long")
    looked = []
    for row in rows:
        if row["scanned"] and row["ratio_stock"]["both"] < CLOSE:
            case = Case(*(row[name] for name in ("cell", "B", "T", "H", "I")))
            row = measure(case, device, SECONDS_OF_CLOSE, asked, False, PAIRS_OF_CLOSE)
            row["again"] = True
            print(recurrent_pictures.line(row), flush=True)
        looked.append(row)
    return looked


def measure(
    case: Case,
    device: torch.device,
    seconds: float,
    asked: argparse.Namespace,
    plans: bool,
    least: int = 1,
) -> Row:
    ours, stock = pair(case, device)
    ways: dict[str, turns.Step] = {"ours": ours, "stock": stock}
    row = case.described()
    try:
        stock()  # what a first call sets up
    except RuntimeError as error:
        row["stock_fails"] = str(error).splitlines()[0]
        del ways["stock"]
    if device.type == "cpu" and case.loss == "every" and not (asked.grid or asked.again):
        ways |= recurrent_jax.step_of(case)
    planned = every_plan(case, device) if plans else {}
    for way in (ours, *planned.values()):
        way()
    if case.loss == "last" and not ours.layer.forward.calls:
        ways["scan"] = scanned(case, device)
        ways["scan"]()
    found = turns.measure(ways | planned, seconds, asked.pairs, least=3 if planned else least)
    if planned:
        row["plans"] = {name: found.pop(name) for name in planned}
        row["best"] = min(planned, key=lambda name: row["plans"][name]["backward"])
        found = {n: value for n, value in found.items() if n.removeprefix("ratio_") not in planned}
    chain = ours.layer.forward
    plan = chain.plan()
    row |= {"scanned": chain.calls > 0, "algorithm": plan and name_of(plan)}
    return row | {"left_to_pytorch": chain.reason} | found


def every_plan(case: Case, device: torch.device) -> dict[str, turns.Step]:
    """The bare operators under the linear plan, and under chunks where they are composed."""
    plans = [bl.Plan("linear")]
    if case.H <= gpu.MOST_COMPOSED:
        plans += [bl.Plan("chunked", chunk=c) for c in gpu.chunks(case.T)]
    return {name_of(plan): OperatorStep(case, plan, device) for plan in plans}


def replayed(cell: str, device: torch.device, seconds: float) -> Row:
    """A whole step from a CUDA graph: what it takes without the host."""
    case = Case(cell, 16, 1000, 20, loss="last")
    row, ways = case.described(), {}
    for who, step in zip(("ours", "stock"), pair(case, device), strict=True):
        try:
            ways[who] = Replay(step)
        except RuntimeError as error:
            row[f"{who}_fails"] = str(error).splitlines()[0]
    row |= turns.measure(ways, seconds, most=11) if ways else {}
    print({key: row[key] for key in row if key in ("cell", "ours", "stock", "ratio_stock")})
    return row


def kept(asked: argparse.Namespace, name: str, results: dict[str, Any]) -> None:
    """The record and its picture."""
    if asked.no_record or asked.sizes:
        return
    path: Path = record.RECORDS / f"{name}.json"
    record.write(path, results)
    recurrent_pictures.draw(results, path.with_suffix(".png"))
    print(f"record: {path}, .png")


if __name__ == "__main__":
    main()
