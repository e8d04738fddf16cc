"""Times layers beside PyTorch's on a grid of sizes: in inference, and under autocast to bfloat16.

T steps, B batch, H input and hidden size.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from bppsa_lightning.calibration import pairs
from bppsa_lightning.calibration.fit_cpu import Size
from bppsa_lightning.calibration.least import Keep
from bppsa_lightning.planner.request import INFERENCE, MODES


class Grid(NamedTuple):
    """The sizes of a cell."""

    T: tuple[int, ...]
    B: tuple[int, ...]
    H: tuple[int, ...]


# PyTorch's LSTM is faster than ours at many of them, its RNN and GRU at short ones, and in bfloat16
# at a few with many units.
_FEW = Grid((1, 3, 10, 100), (1, 4, 16, 64, 256), (32, 128, 256, 512))
GRIDS = {
    "LSTM": Grid((1, 10, 100, 1000), (1, 4, 16, 64, 256), (8, 32, 64, 128, 256, 512)),
    "GRU": _FEW,
    "RNN": _FEW,
}
# Multiply-adds of a gate: larger ones are taken to be as those of fewer steps.
MOST = 1 << 27

Key = tuple[str, str, int, int, int]  # cell, mode, T, B, H


def measured(keep: Keep, seconds: float, bfloat16: bool) -> Iterator[Mapping[Key, float]]:
    """PyTorch's time over ours, of every number of steps, for each cell, B and H.

    Args:
        keep: what a name was measured to be, of what measures it.
        seconds: for each size.
        bfloat16: of training and of inference in bfloat16; else of inference in float32.
    """
    for cell, grid in GRIDS.items():
        for H in grid.H:
            for B in grid.B:
                yield {
                    (cell, mode, T, B, H): ratio
                    for mode in (MODES if bfloat16 else (INFERENCE,))
                    for T, ratio in _of(cell, mode, B, H, keep, seconds, bfloat16)
                }


def nodes() -> int:
    """How many of `measured`'s there are."""
    return sum(len(grid.H) * len(grid.B) for grid in GRIDS.values())


def _of(
    cell: str, mode: str, B: int, H: int, keep: Keep, seconds: float, bfloat16: bool
) -> Iterator[tuple[int, float]]:
    ratio = 1.0
    for T in GRIDS[cell].T:
        if GRIDS[cell].T[0] == T or T * B * H * H <= MOST:
            size = Size(cell, T, B, H)
            name = f"{' '.join(map(str, size))}{' bfloat16' * bfloat16} {mode}"
            ours, stock = keep(
                name, partial(pairs.pair, size, seconds, bfloat16=bfloat16, mode=mode)
            )
            ratio = stock / ours
        yield T, ratio
