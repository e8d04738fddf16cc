"""Fits the planner's estimates for CUDA to a record, and compares its choices with it.

    python -m experiments.benchmarks.fit_planner                     # prints the comparison
    python -m experiments.benchmarks.fit_planner experiments/records/h200_recurrent.json --write

Least squares of relative errors, coefficients not negative, over the sizes of at least LONG steps:
shorter ones are measured at the host's pace, which is what "least" keeps of stock PyTorch's. How
many blocks of the composing kernel a multiprocessor holds ("resident") is fitted too. --write puts
the result into bppsa_lightning/planner/tables/nvidia_h200.json. Needs SciPy.

Letters: T steps, B batch, H state.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bppsa_lightning.planner import cost_cuda
from experiments import recording
from experiments.benchmarks.recurrent_cases import OPERATORS

LONG = 1000
FITTED_H = 20
ONE_B = 16  # of the sizes with other H
MEASURED = cost_cuda.DATA
Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("record", nargs="?", default=recording.RECORDS / "h200_recurrent.json")
    parser.add_argument("--processors", type=int, default=132, help="of that GPU (H200: 132)")
    parser.add_argument("--write", action="store_true", help=f"into {MEASURED.name}")
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    path = Path(asked.record).resolve()
    measured = json.loads(path.read_text())
    if asked.write:
        rows = measured["rows"]
        cells = sorted({row["cell"] for row in rows}, key=OPERATORS.__getitem__)
        fit = {
            "record": f"experiments/records/{path.name}",
            "gpu": measured["environment"]["gpu"],
            "processors": asked.processors,
            "cells": {
                cost_cuda.kind(OPERATORS[cell]): fitted(
                    cell, [r for r in rows if r["cell"] == cell], asked.processors
                )
                for cell in cells
            },
        }
        MEASURED.write_text(json.dumps(fit, indent=1) + "\n")
        print(f"written: {MEASURED}; run again to compare")
        return
    compare(measured["rows"])


def fitted(cell: str, rows: list[Row], processors: int) -> dict[str, Any]:
    at_fitted = [row for row in rows if row["H"] == FITTED_H]
    long = [row for row in at_fitted if row["T"] >= LONG]
    ours: dict[str, Any] = {}
    stock: dict[str, Any] = {}
    for H in sorted({row["H"] for row in rows if row["B"] == ONE_B}):
        ours[str(H)], stock[str(H)] = {}, {}
        for part in ("forward", "backward"):
            same = long if H == FITTED_H else [r for r in rows if (r["B"], r["H"]) == (ONE_B, H)]
            least = min(row["stock"][part] for row in at_fitted)
            if H == FITTED_H:
                terms = [(row, cost_cuda.walk_terms(row["T"], row["B"])) for row in same]
                ours[str(H)][part] = solve((t, walked(row, part)) for row, t in terms)
                found = solve((t, row["stock"][part]) for row, t in terms)
            else:
                ours[str(H)][part] = single(same, lambda row: walked(row, part))  # noqa: B023
                found = single(same, lambda row: row["stock"][part])  # noqa: B023
            stock[str(H)][part] = {"least": least, "terms": found}
    states = 2 if cell == "LSTM" else 1
    resident, coefficients = chunked(long, states, processors)
    least = {
        "forward": min(walked(row, "forward") for row in at_fitted),
        "backward": min(t["backward"] for row in at_fitted for t in row["plans"].values()),
    }
    return {
        "resident": resident, "chunked": coefficients, "least": least, "ours": ours, "stock": stock
    }  # fmt: skip


def walked(row: Row, part: str) -> float:
    """Seconds of the linear plan; of the forward, which is the same in all plans, the least."""
    if part == "backward":
        return float(row["plans"]["linear"]["backward"])
    return min(float(times["forward"]) for times in row["plans"].values())


def solve(equations: Iterable[tuple[tuple[float, ...], float]]) -> list[float]:
    return residual(equations)[1]


def residual(equations: Iterable[tuple[tuple[float, ...], float]]) -> tuple[float, list[float]]:
    from scipy.optimize import nnls  # late: no other script needs SciPy

    pairs = list(equations)
    terms, seconds = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    found, error = nnls(terms / seconds[:, None], np.ones(len(pairs)))
    return float(error), [float(f"{c:.4g}") for c in found]


def single(rows: list[Row], seconds: Callable[[Row], float]) -> list[float]:
    """Where one size was measured, all of it counts as steps."""
    return [0.0, float(f"{max(seconds(row) / row['T'] for row in rows):.4g}"), 0.0]


def chunked(rows: list[Row], states: int, processors: int) -> tuple[int, list[float]]:
    """Blocks of the composing kernel on a multiprocessor, and the coefficients of chunk_terms."""

    def equations(resident: int) -> Iterable[tuple[tuple[float, ...], float]]:
        for row in rows:
            for name, times in row["plans"].items():
                if name != "linear":
                    size = (row["T"], row["B"], row["H"], int(name[1:]))
                    terms = cost_cuda.chunk_terms(*size, states, resident, processors)
                    yield terms, times["backward"]

    tried = {resident: residual(equations(resident)) for resident in range(2, 13)}
    best = min(tried, key=lambda resident: tried[resident][0])
    return best, tried[best][1]


def compare(rows: list[Row]) -> None:
    def ms(seconds: float) -> str:
        return f"{seconds * 1e3:7.3f}"

    print("milliseconds; cost: of the chosen plan's backward, over the best one's")
    for row in rows:
        layer = cost_cuda.CudaLayerSize(OPERATORS[row["cell"]], row["T"], row["B"], row["H"])
        plan = cost_cuda.choose(layer, "auto")
        name = f"c{plan.chunk}" if plan.chunk else "linear"
        found, best = row["plans"][name], row["plans"][row["best"]]
        stock, cost = row["stock"], found["backward"] / best["backward"]
        left = " LEFT TO CUDNN" if cost_cuda.fallback_reason(layer) else ""
        print(
            f"{row['cell']:>9} B={row['B']:<4} T={row['T']:<6} H={row['H']:<4}{name:>7} "
            f"{ms(found['backward'])} (estimate {ms(plan.seconds)}), best {row['best']:>6} "
            f"{ms(best['backward'])}, cost {cost:.2f}, cuDNN {ms(stock['backward'])} (estimate "
            f"{ms(layer.stock('backward'))}), both {stock['both'] / found['both']:5.2f}x"
            f"{left}"
        )


if __name__ == "__main__":
    main()
