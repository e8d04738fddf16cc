"""From what was measured on a CPU to the sections of its table.

T steps, B batch, H hidden.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bppsa_lightning.calibration import least_squares
from bppsa_lightning.planner import Plan, cost_recurrent

# A call is computed here only where that was measured to be so many times as fast: less is noise.
MARGIN = 1.1
_UNKNOWN = 1 / 1.5


class Size(NamedTuple):
    """A layer: "RNN", "GRU" or "LSTM"."""

    cell: str
    T: int
    B: int
    H: int


class Point(NamedTuple):
    """One number of steps, and whether it pays to compute a call of so many here.

    Attributes:
        ratio: PyTorch's time over ours; None where only the choice is known.
    """

    T: int
    pays: bool
    ratio: float | None


def point(T: int, ours: float, stock: float) -> Point:
    """Of what was measured, in seconds."""
    return Point(T, stock >= MARGIN * ours, stock / ours)


def hand_over(points: Mapping[Size, Point], threads: int) -> dict[str, Any]:
    """The section "hand_over" for one number of threads, of a whole grid of H and B."""
    return {"threads": threads, **_least(points)}


def packed(points: Mapping[tuple[Size, bool], Point]) -> dict[str, Any]:
    """The section "packed": of samples of different lengths; and where more than half of the padded
    steps are padding (True in the key)."""
    even, padded = ({s: p for (s, k), p in points.items() if k == key} for key in (False, True))
    return {"even": _least(even), "padded": _least(padded)}


def _least(points: Mapping[Size, Point]) -> dict[str, Any]:
    """The least T that pays, as `planner.hand_over.LeastSteps` takes it, of each cell."""
    sizes, batches = sorted({s.H for s in points}), sorted({s.B for s in points})
    least: dict[str, list[list[int | None]]] = {}
    for cell in sorted({s.cell for s in points}):
        steps: dict[tuple[int, int], list[Point]] = {}
        for size, found in points.items():
            if size.cell == cell:
                steps.setdefault((size.H, size.B), []).append(found)
        least[cell] = [[least_steps(steps[H, B]) for B in batches] for H in sizes]
    return {"H": sizes, "B": batches, "least_T": least}


def least_steps(points: Iterable[Point]) -> int | None:
    """The least T from which on it pays; None if it never does.

    Between the last T that did not pay and the next one that was measured, the ratio of times is
    taken to be a power of T; where it is not known, PyTorch is taken to be 1.5 times as fast.
    """
    ordered = sorted(points)
    slow = max((i for i, point in enumerate(ordered) if not point.pays), default=None)
    if slow is None:
        return 1
    if slow + 1 == len(ordered):
        return None
    below, above = ordered[slow], ordered[slow + 1]
    short = math.log(MARGIN / (_UNKNOWN if below.ratio is None else below.ratio))
    ahead = math.log(max(above.ratio or MARGIN, MARGIN) / MARGIN)
    share = short / (short + ahead) if short + ahead else 1.0
    crossing = below.T * (above.T / below.T) ** share
    return min(max(math.ceil(crossing), below.T + 1), above.T)


def steps(seconds: Mapping[tuple[str, int, int], float], threads: int) -> dict[str, Any]:
    """A part of the section "steps": of a whole grid of (cell, H, samples), seconds of a step."""
    cells = sorted({cell for cell, _, _ in seconds})
    sizes, samples = sorted({H for _, H, _ in seconds}), sorted({n for _, _, n in seconds})
    rounded = {
        cell: [[float(f"{seconds[cell, H, n]:.3g}") for n in samples] for H in sizes]
        for cell in cells
    }
    return {"threads": threads, "H": sizes, "samples": samples, "seconds": rounded}


def ratios(
    of_sizes: Mapping[tuple[str, str, int, int, int], float], threads: int
) -> list[dict[str, Any]]:
    """Parts of the sections "inference" and "bfloat16", of whole grids of (cell, mode, T, B, H):
    PyTorch's time over ours."""
    parts = []
    for cell in sorted({cell for cell, *_ in of_sizes}):
        keys = [key for of_cell, *key in of_sizes if of_cell == cell]
        modes, T, B, H = (sorted(set(of)) for of in zip(*keys, strict=True))
        part: dict[str, Any] = {"threads": threads, "cell": cell, "T": T, "B": B, "H": H}
        for mode in modes:
            part[mode] = [
                [[float(f"{of_sizes[cell, mode, t, b, h]:.3g}") for h in H] for b in B] for t in T
            ]
        parts.append(part)
    return parts


class Scanned(NamedTuple):
    """A backward of a layer: its size, its plan, and the seconds that it took."""

    size: Size
    plan: Plan
    seconds: float


def scan(rows: Iterable[Scanned], threads: int) -> dict[str, Any]:
    """The section "scan": the coefficients of `cost_recurrent.terms`, for each cell."""
    equations: dict[str, list[least_squares.Equation]] = {}
    for (cell, T, B, H), plan, seconds in rows:
        terms = cost_recurrent.terms(plan, T, B, H, threads)
        equations.setdefault(cell, []).append((terms, seconds))
    return {"threads": threads} | {c: least_squares.fit(e)[0] for c, e in sorted(equations.items())}
