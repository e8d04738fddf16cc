"""Times layers under autocast to bfloat16 beside PyTorch's, on a CPU that multiplies it.

T steps, B batch, H input and hidden size.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bppsa_lightning.calibration import pairs
from bppsa_lightning.calibration.fit_cpu import Size
from bppsa_lightning.planner.request import MODES


class Grid(NamedTuple):
    """The sizes of a cell."""

    T: tuple[int, ...]
    B: tuple[int, ...]
    H: tuple[int, ...]


# PyTorch's LSTM is faster than ours at many of them, its RNN and GRU at a few with many units.
_FEW = Grid((1, 3, 10, 100), (1, 4, 16, 64, 256), (32, 128, 256, 512))
GRIDS = {
    "LSTM": Grid((1, 10, 100, 1000), (1, 4, 16, 64, 256), (8, 32, 64, 128, 256, 512)),
    "GRU": _FEW,
    "RNN": _FEW,
}
# Multiply-adds of a gate: larger ones are taken to be as those of fewer steps.
MOST = 1 << 27

Key = tuple[str, str, int, int, int]  # cell, mode, T, B, H
Keep = Callable[[str, Callable[[], Any]], Any]  # as `Progress.measured`


def measured(keep: Keep, seconds: float) -> Iterator[Mapping[Key, float]]:
    """PyTorch's time over ours, of every number of steps, for each cell, B and H.

    Args:
        keep: what a name was measured to be, of what measures it.
        seconds: for each size.
    """
    for cell, grid in GRIDS.items():
        for H in grid.H:
            for B in grid.B:
                yield {
                    (cell, mode, T, B, H): ratio
                    for mode in MODES
                    for T, ratio in _of(cell, mode, B, H, keep, seconds)
                }


def nodes() -> int:
    """How many of `measured`'s there are."""
    return sum(len(grid.H) * len(grid.B) for grid in GRIDS.values())


def _of(
    cell: str, mode: str, B: int, H: int, keep: Keep, seconds: float
) -> Iterator[tuple[int, float]]:
    ratio = 1.0
    for T in GRIDS[cell].T:
        if GRIDS[cell].T[0] == T or T * B * H * H <= MOST:
            size = Size(cell, T, B, H)
            name = f"{' '.join(map(str, size))} bfloat16 {mode}"
            ours, stock = keep(name, lambda: pairs.pair(size, seconds, bfloat16=mode))  # noqa: B023
            ratio = stock / ours
        yield T, ratio
