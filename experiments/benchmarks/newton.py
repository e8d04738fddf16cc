"""Newton's method over a recurrence, beside the walk and windows of time: iterations, time, error.

    python -m experiments.benchmarks.newton

RNN, GRU and LSTM layers, one sample, float32, forward and backward with a gradient into every
output. The recurrent weights are multiplied by a gain: the larger, the less a recurrence forgets.
The ways take turns:

- walk: our fused kernels, one step after the other, `bl.attach(layer, "linear")`;
- windows: `bl.attach(layer, "speculative")`;
- newton: all steps at once (`newton_solver`), until no state changes by 1e-6, with full Jacobians;
- diagonal: the same with their diagonals in the forward pass;
- scans: nothing but the scans of newton, over Jacobians that are there.

Where 100 iterations were not enough, a way is not timed, and the iterations in float64 are counted:
if they are few there, the rounding of float32 was what kept the changes above 1e-6. "error" is the
largest error of an output against a walk in float64, "gradient_error" that of a gradient, relative
to the largest number of its tensor; null where one is not finite. PyTorch's own layers are timed
alone, at gain 1, and so is one scan over Jacobians, walked and in parallel ("one_scan").
Writes newton_cpu.json and .png.
"""

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import newton_plots, timing, windows
from experiments.benchmarks.newton_solver import CELLS, MOST, TOLERANCE, Solution, forward

CPU = torch.device("cpu")
WAYS = {"newton": False, "diagonal": True}  # of the solver: whether by diagonals
HIDDEN, GAINS, T = (4, 8, 20, 32), (0.5, 1.0, 1.5, 2.0, 3.0), 4096
LONG = ((20, 1.0, 16_000),)  # H, gain, T


def layer_of(cell: str, H: int, gain: float) -> nn.RNNBase:
    torch.manual_seed(0)
    module = getattr(nn, cell)(1, H)
    with torch.no_grad():
        module.weight_hh_l0.mul_(gain)
    return module


def output_of(module: nn.RNNBase, x: Tensor) -> Tensor:
    return module(x)[0]


def row(cell: str, H: int, gain: float, T: int, seconds: float) -> dict[str, Any]:
    module = layer_of(cell, H, gain)
    x = torch.randn(T, 1, 1)
    attached = {"walk": copy.deepcopy(module), "windows": copy.deepcopy(module)}
    bl.attach(attached["walk"], "linear")
    bl.attach(attached["windows"], "speculative")
    runs = {way: windows.step_of(output_of, m, windows.leaves(x)) for way, m in attached.items()}
    true = copy.deepcopy(module).double()
    bl.attach(true, "linear")
    exact = windows.step_of(output_of, true, windows.leaves(x, torch.float64))()

    found: dict[str, Any] = {way: {} for way in WAYS}
    for way, diagonal in WAYS.items():
        found[way] = facts(module, x, diagonal)
        if found[way]["converged"]:
            solved = lambda m, x, diagonal=diagonal: forward(m, x, diagonal)[0]  # noqa: E731
            runs[way] = windows.step_of(solved, copy.deepcopy(module), windows.leaves(x))
    S = H * CELLS[type(module)].parts
    for way, run in runs.items():
        outputs, *gradients = zip(run(), exact, strict=True)
        found.setdefault(way, {})["error"] = error([outputs])
        found[way]["gradient_error"] = error(gradients)
    steps = {way: timed(run) for way, run in runs.items()}
    if found["newton"]["converged"]:
        steps["scans"] = timed(scan_of(T, S, "linear", found["newton"]["iterations"] + 1))
    turns = timing.take_turns(steps, seconds, most=9, least=3, shortest=1)
    for way, of_way in turns.items():
        ratio = timing.ratios(of_way, turns["walk"])["step"]
        seconds_of = timing.medians(of_way)["step"]
        found.setdefault(way, {}).update(seconds=seconds_of, to_walk=ratio)
    sizes = {"cell": cell, "H": H, "S": S, "gain": gain, "T": T, "B": 1}
    return {**sizes, "jacobian_bytes": T * S * S * x.element_size(), **found}


def facts(module: nn.RNNBase, x: Tensor, diagonal: bool) -> dict[str, Any]:
    """What the solver does; in float64 too, where it does not converge."""
    start = time.perf_counter()
    found = solution(module, x, diagonal)
    told = {
        "iterations": found.iterations,
        "converged": found.converged,
        "change": found.change,
        "seconds_forward": time.perf_counter() - start,
    }
    if not found.converged:
        double = solution(copy.deepcopy(module).double(), x.double(), diagonal)
        told["iterations_float64"] = double.iterations if double.converged else None
    return told


@torch.no_grad()
def solution(module: nn.RNNBase, x: Tensor, diagonal: bool) -> Solution:
    return forward(module, x, diagonal)[1]


def error(pairs: list[tuple[Tensor, Tensor]]) -> float | None:
    """`windows.error` of (found, exact) pairs; None if any is not finite."""
    if not all(bool(t.isfinite().all()) for pair in pairs for t in pair):
        return None
    return windows.error(*map(list, zip(*pairs, strict=True)))


def timed(run: windows.Run) -> timing.Step:
    return lambda: timing.timed(CPU, step=run)


def scan_of(T: int, S: int, algorithm: str, count: int = 1) -> Callable[[], None]:
    """`count` scans over T Jacobians, (S, S) each."""
    jac, residual = torch.randn(T - 1, 1, S, S) / (2 * S**0.5), torch.randn(T, 1, S)

    def run() -> None:
        for _ in range(count):
            bl.ops.reverse_scan(jac, residual, algorithm)

    return run


def scans(T: int, S: int, seconds: float) -> dict[str, Any]:
    """One scan over T Jacobians: walked, and in parallel, which multiplies Jacobians."""
    torch.manual_seed(0)
    ways = {algorithm: timed(scan_of(T, S, algorithm)) for algorithm in ("linear", "chunked")}
    turns = timing.take_turns(ways, seconds, most=9, least=3)
    return {"T": T, "S": S, **{way: timing.medians(turn)["step"] for way, turn in turns.items()}}


def pytorchs(cell: str, H: int, T: int) -> float:
    """Seconds of PyTorch's own layer, at gain 1."""
    run = windows.step_of(output_of, layer_of(cell, H, 1.0), windows.leaves(torch.randn(T, 1, 1)))
    return timing.repeated(run, 0, least=3)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each size and gain")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    cells = [kind.__name__ for kind in CELLS]
    rows = []
    for cell in cells:
        sizes = [(H, gain, T) for H in HIDDEN for gain in GAINS]
        rows += [row(cell, *size, asked.seconds) for size in (*sizes, *LONG)]
        print(f"\n{cell}\n\n{table(rows, cell)}", flush=True)
    record = {
        "tolerance": TOLERANCE,
        "most_iterations": MOST,
        "rows": rows,
        "pytorch": [
            {"cell": cell, "H": H, "T": T, "seconds": pytorchs(cell, H, T)}
            for cell in cells
            for H in HIDDEN
        ],
        "one_scan": [scans(T, S, asked.seconds) for S in (*HIDDEN, 2 * HIDDEN[-1])],
    }
    path = recording.folder(asked.record) / "newton_cpu.json"
    newton_plots.draw(recording.write(path, record), path.with_suffix(".png"))
    print(f"record: {path}, .png")


def table(rows: list[dict[str, Any]], cell: str) -> str:
    lines = []
    for r in rows:
        if r["cell"] != cell:
            continue
        times = [
            f"{r[way]['to_walk']:.1f}x" if "to_walk" in r[way] else "-"
            for way in ("windows", *WAYS)
        ]
        errors = [f"{r[way]['error']:.0e}" if "error" in r[way] else "-" for way in ("walk", *WAYS)]
        lines.append(
            (r["H"], r["gain"], f"{r['T']:,}", *(iterations(r[way]) for way in WAYS),
             f"{r['walk']['seconds'] * 1e3:.1f}", *times, *errors,
             f"{r['jacobian_bytes'] / 2**20:.1f}")
        )  # fmt: skip
    head = (
        "H", "gain", "T", "iterations", "by diagonals", "walk, ms", "windows", "Newton",
        "diagonals", "error of the walk", "of Newton", "of diagonals", "Jacobians, MiB",
    )  # fmt: skip
    return recording.markdown(head, lines)


def iterations(way: dict[str, Any]) -> str:
    """How many, or that they were not enough: "> 100 (float64: 28)"."""
    if way["converged"]:
        return str(way["iterations"])
    double = way["iterations_float64"]
    return f"> {way['iterations']}" + (f" (float64: {double})" if double else "")


if __name__ == "__main__":
    main()
