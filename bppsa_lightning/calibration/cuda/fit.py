"""Fits the planner's estimates for a GPU to rows of times: what cost_cuda.py reads.

Least squares of relative errors, coefficients not negative, over the sizes of at least LONG steps:
shorter ones are measured at the host's pace, which is what "least" keeps of stock PyTorch's. How
many blocks of the composing kernel a multiprocessor holds ("resident") is fitted too.

A row is {"cell": "RNN", "B", "T", "H", "stock": times, "plans": {"linear": times, "c32": times, …}}
with times {"forward": seconds, "backward": seconds}.

Letters: T steps, B batch, H state.
"""

from collections.abc import Callable, Sequence
from typing import Any

from bppsa_lightning.calibration import least_squares
from bppsa_lightning.planner import cost_cuda

Row = dict[str, Any]
OPERATORS = {"RNN": "rnn_tanh", "GRU": "gru", "LSTM": "lstm"}
LONG = 1000
FITTED_H = 20
ONE_B = 16  # of the sizes with other H
_PARTS = ("forward", "backward")
_RESIDENT = range(2, 13)


def fit(rows: Sequence[Row], processors: int) -> dict[str, Any]:
    """The table's "cells": the fit of each cell that has rows enough.

    Args:
        rows: as measured. processors: multiprocessors of the GPU.
    """
    cells = sorted({row["cell"] for row in rows}, key=list(OPERATORS).index)
    of_cell = {cell: [row for row in rows if row["cell"] == cell] for cell in cells}
    return {
        cost_cuda.kind(OPERATORS[cell]): fit_cell(cell, own, processors)
        for cell, own in of_cell.items()
        if sum(row["H"] == FITTED_H and row["T"] >= LONG for row in own) >= 3
    }


def fit_cell(cell: str, rows: Sequence[Row], processors: int) -> dict[str, Any]:
    """The fit of one cell."""
    at_fitted = [row for row in rows if row["H"] == FITTED_H]
    long = [row for row in at_fitted if row["T"] >= LONG]
    ours: dict[str, Any] = {}
    stock: dict[str, Any] = {}
    for H in sorted({row["H"] for row in rows if row["B"] == ONE_B}):
        same = long if H == FITTED_H else [r for r in rows if (r["B"], r["H"]) == (ONE_B, H)]
        walk = _terms if H == FITTED_H else _steps_alone
        ours[str(H)] = {part: walk(same, _walked(part)) for part in _PARTS}
        stock[str(H)] = {
            part: {
                "least": min(row["stock"][part] for row in at_fitted),
                "terms": walk(same, _stock(part)),
            }
            for part in _PARTS
        }
    resident, coefficients = _chunked(long, 2 if cell == "LSTM" else 1, processors)
    least = {
        "forward": min(map(_walked("forward"), at_fitted)),
        "backward": min(t["backward"] for row in at_fitted for t in row["plans"].values()),
    }
    return {
        "resident": resident, "chunked": coefficients, "least": least, "ours": ours, "stock": stock
    }  # fmt: skip


def _walked(part: str) -> Callable[[Row], float]:
    """Seconds of the linear plan; of the forward, which is the same in all plans, the least."""

    def of(row: Row) -> float:
        if part == "backward":
            return float(row["plans"]["linear"]["backward"])
        return min(float(times["forward"]) for times in row["plans"].values())

    return of


def _stock(part: str) -> Callable[[Row], float]:
    return lambda row: float(row["stock"][part])


def _terms(rows: Sequence[Row], seconds: Callable[[Row], float]) -> list[float]:
    """The coefficients of walk_terms."""
    return least_squares.fit(
        [(cost_cuda.walk_terms(row["T"], row["B"]), seconds(row)) for row in rows]
    )[0]


def _steps_alone(rows: Sequence[Row], seconds: Callable[[Row], float]) -> list[float]:
    """Where one size was measured, all of it counts as steps."""
    return [0.0, _rounded(max(seconds(row) / row["T"] for row in rows)), 0.0]


def _chunked(rows: Sequence[Row], states: int, processors: int) -> tuple[int, list[float]]:
    """Blocks of the composing kernel on a multiprocessor, and the coefficients of chunk_terms.

    No coefficients if no chunked plan was timed.
    """

    timed = [
        (row, int(name[1:]), float(times["backward"]))
        for row in rows
        for name, times in row["plans"].items()
        if name != "linear"
    ]
    if not timed:
        return _RESIDENT[0], []

    def terms(row: Row, chunk: int, resident: int) -> tuple[float, ...]:
        size = row["T"], row["B"], row["H"], chunk
        return cost_cuda.chunk_terms(*size, states, resident, processors)

    tried = {
        resident: least_squares.fit([(terms(r, chunk, resident), s) for r, chunk, s in timed])
        for resident in _RESIDENT
    }
    best = min(tried, key=lambda resident: tried[resident][1])
    return best, tried[best][0]


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")
