"""The planner's choice against every fixed one: the backward of a recurrent layer, in one run.

    python -m experiments.benchmarks.plans

For each cell and size, each fixed algorithm and the plan of "auto" take turns (once, where auto's
plan is one of the fixed: it is the same call); medians of the backward with
parameter gradients, in seconds, and the planner's estimate of the scan. Writes
planner_recurrent_cpu.json. On the CPU only.

Letters: B batch, T steps, H hidden.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch

import bppsa_lightning as bl
from bppsa_lightning import planner
from experiments import recording
from experiments.benchmarks import timing
from experiments.benchmarks.recurrent_cases import WEIGHTS

CELLS = {"rnn_tanh": 1, "gru": 3, "lstm": 4}
SIZES = [(B, T, H) for B in (1, 2, 16, 64) for T in (10, 100, 1000) for H in (1, 8, 20, 64)]
SIZES += [(1, 10000, 20), (1, 10000, 8), (16, 100, 128)]
TURNS = 15
NOTICED = 50e-6  # seconds that a choice may cost


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="for a size (default 1)")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    rows, worst = [], 1.0
    for cell in CELLS:
        for size in SIZES:
            rows.append(measure(cell, *size, asked.seconds))
            slower = rows[-1]["auto_minus_best"] > NOTICED
            worst = max(worst, rows[-1]["auto_over_best"] if slower else 1.0)
            print(line(rows[-1]), flush=True)
    print(f"auto is at most {worst:.2f}x the best fixed choice where that is more than 50 us")
    path = recording.folder(asked.record) / "planner_recurrent_cpu.json"
    recording.write(path, {"rows": rows})
    print(f"record: {path}")


def measure(cell: str, B: int, T: int, H: int, seconds: float) -> dict[str, Any]:
    plans = {
        name: planner.plan(planner.Request(cell, T, B, H, torch.device("cpu"), name))
        for name in ("auto", "linear", "chunked", "blelloch")
    }
    backward = backward_of(cell, B, T, H)
    ways = {key(plan): step_of(backward, plan) for plan in plans.values()}
    turns = timing.take_turns(ways, seconds, most=TURNS, shortest=1)
    taken = {name: timing.medians(turns[key(plan)])["backward"] for name, plan in plans.items()}
    best = min(taken[name] for name in taken if name != "auto")
    return {
        "cell": cell, "B": B, "T": T, "H": H, "auto": plans["auto"].algorithm,
        "chunk": plans["chunked"].chunk,
        "estimate": plans["auto"].seconds,
        "seconds": taken,
        "auto_over_best": taken["auto"] / best,
        "auto_minus_best": taken["auto"] - best,
    }  # fmt: skip


def backward_of(cell: str, B: int, T: int, H: int) -> Callable[[bl.Plan], object]:
    """The backward operator of a layer, with parameter gradients, as a function of the plan."""
    torch.manual_seed(0)
    bound, G = H**-0.5, CELLS[cell]
    weights = [torch.empty(G * H, n).uniform_(-bound, bound) for n in (1, H)]
    weights += [torch.empty(G * H).uniform_(-bound, bound) for _ in range(2)]
    x, u = torch.rand(T, B, 1), torch.randn(T, B, H)
    operands = (x, None, None, *weights, None, False)
    output, _, _, kept = torch.ops.bppsa.recurrent(cell, *operands, 2, "auto")

    def backward(plan: bl.Plan) -> object:
        return torch.ops.bppsa.recurrent_backward(
            cell, u, None, None, output, kept, *operands, *key(plan), WEIGHTS
        )

    return backward


def step_of(backward: Callable[[bl.Plan], object], plan: bl.Plan) -> timing.Step:
    return lambda: timing.timed(torch.device("cpu"), backward=lambda: backward(plan))


def line(row: dict[str, Any]) -> str:
    times = " ".join(f"{name} {t * 1e3:.3f}" for name, t in row["seconds"].items())
    missed = row["auto_over_best"] > 1.1 and row["auto_minus_best"] > NOTICED
    sizes = " ".join(str(row[letter]) for letter in "BTH")
    return f"{row['cell']} {sizes} {times} ms{' MISSED' if missed else ''}"


def key(plan: bl.Plan) -> tuple[str, int, int]:
    """What the operators are told of a plan."""
    return plan.algorithm, plan.chunk, plan.levels


if __name__ == "__main__":
    main()
