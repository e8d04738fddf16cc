"""From how many steps on layers are faster here than in PyTorch, on the CPU; what is chosen by it.

    python -m experiments.benchmarks.hand_over --table --record    # for the planner's tables
    python -m experiments.benchmarks.hand_over --record            # what is chosen in inference

With --table what `bl.calibrate` measures of them in training and in inference, for each number of
threads; `tables` takes two sections of amd_epyc_2 from it. Without, forwards of which nothing is
kept, of sizes between those of the table: PyTorch's layer, ours whatever the table says ("linear"),
and whichever "auto" takes; also whether it would be ours in training (ours_in_training). T steps,
B batch, H input and hidden size. Writes hand_over_table_cpu.json, or inference_cpu.json.
"""

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.calibration import fit_cpu, least, pairs, ratios
from bppsa_lightning.planner import hand_over
from experiments import recording
from experiments.benchmarks import timing

STEPS, BATCHES, SIZES = (1, 3, 6, 20, 200), (1, 3, 8, 32, 128), (20, 48, 100, 200, 400)
MOST = 1 << 27  # multiply-adds of a gate
HEAD = ("cell", "T, B, H", "threads", "PyTorch", "linear", "auto", "auto's speed-up")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--table", action="store_true", help="measure for the planner's table")
    parser.add_argument("--threads", type=int, nargs="+", help="(default: one, and all of torch's)")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each size")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    before = torch.get_num_threads()
    of_table = ("hand_over", "inference") if asked.table else ("rows",)
    found: dict[str, list[Any]] = {section: [] for section in of_table}
    for threads in asked.threads or sorted({1, before}):
        torch.set_num_threads(threads)
        if asked.table:
            found["hand_over"].append(least_steps(keep, asked.seconds))
            found["inference"] += ratios_of(keep, asked.seconds)
        else:
            found["rows"] += rows(asked.seconds)
    torch.set_num_threads(before)
    name = "hand_over_table_cpu" if asked.table else "inference_cpu"
    path = recording.folder(asked.record) / f"{name}.json"
    recording.write(path, found)
    if not asked.table:
        print(recording.markdown(HEAD, map(line, found["rows"])))
    print(f"record: {path}")


def keep(name: str, measure: Callable[[], Any]) -> Any:
    """Measures; nothing is kept for a later call."""
    return measure()


def least_steps(keep: least.Keep, seconds: float) -> dict[str, Any]:
    """A part of a table's "hand_over", with torch's number of threads."""
    nodes = least.Search(keep, seconds).training()
    points = {size: point for node in nodes for size, point in node}
    return fit_cpu.hand_over(points, torch.get_num_threads())


def ratios_of(keep: least.Keep, seconds: float) -> list[dict[str, Any]]:
    """Parts of its "inference"."""
    nodes = ratios.measured(keep, seconds, bfloat16=False)
    found = {size: ratio for node in nodes for size, ratio in node.items()}
    return fit_cpu.ratios(found, torch.get_num_threads())


def rows(seconds: float) -> list[dict[str, Any]]:
    """A row for each size."""
    return [
        measure(cell, T, B, H, seconds)
        for cell in pairs.CELLS
        for H in SIZES
        for B in BATCHES
        for T in STEPS
        if T * B * H * H <= MOST
    ]


def measure(cell: str, T: int, B: int, H: int, seconds: float) -> dict[str, Any]:
    """Seconds of PyTorch's layer, of ours and of "auto", and their ratios."""
    torch.manual_seed(0)
    stock = pairs.CELLS[cell](H, H)
    ours, auto = copy.deepcopy(stock), copy.deepcopy(stock)
    bl.attach(ours, "linear")
    (chain,) = bl.attach(auto)
    x = torch.randn(T, B, H)
    ways = {
        name: step(layer, x) for name, layer in (("stock", stock), ("linear", ours), ("auto", auto))
    }
    found = timing.measure(ways, seconds, most=15, least=5)
    size = {"cell": cell, "T": T, "B": B, "H": H, "threads": torch.get_num_threads()}
    in_training = not hand_over.pytorch_is_faster(chain.config.cell.name, T, B, H)
    return size | {"ours": chain.fallback_calls == 0, "ours_in_training": in_training} | found


def step(layer: nn.Module, x: torch.Tensor) -> timing.Step:
    def run() -> None:
        with torch.no_grad():
            layer(x)

    return lambda: timing.timed(torch.device("cpu"), step=run)


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """A row for people."""
    ms = [f"{row[way]['step'] * 1e3:.3f} ms" for way in ("stock", "linear", "auto")]
    size = f"{row['T']}, {row['B']}, {row['H']}"
    return row["cell"], size, str(row["threads"]), *ms, f"{1 / row['ratio_auto']['step']:.2f}x"


if __name__ == "__main__":
    main()
