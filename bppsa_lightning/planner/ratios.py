"""On a CPU: whether PyTorch's layers are faster than ours, by what was measured of both.

Where neither is always the faster one from some number of steps on, as `hand_over` has it of
training in float32: short calls are faster here, long ones of many units or samples there. So a
table has PyTorch's time over ours, of each cell, at some T, B and H; between them it is
interpolated, all on logarithmic scales, and beyond them the last one counts.

One is of inference in float32, in which PyTorch does not do what it does for a backward. One is of
bfloat16, on a CPU that multiplies it, in training and in inference: under autocast, or with weights
in bfloat16, PyTorch's products then take up to twice the multiply-adds of float32, in which ours
are computed. An LSTM is oneDNN's as a whole, an RNN or a GRU product by product.

T steps, B batch, H hidden.
"""

import math
from collections.abc import Sequence

import torch

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import machine
from bppsa_lightning.planner.hand_over import nearest_threads, place

# A call in float32 is computed here only where that is so many times as fast: less is noise. (In
# bfloat16 ours is the more exact one.)
MARGIN = 1.05


def pytorch_is_faster(cell: str, bfloat16: bool, mode: str, T: int, B: int, H: int) -> bool:
    """Whether PyTorch's layer is the faster one.

    Args:
        cell: a name of `CELLS`.
        bfloat16, mode: as of `Request`; in float32 the mode is "inference".
    """
    section = machine.ratios("bfloat16" if bfloat16 else "inference")
    parts = [part for part in section if part["cell"] == CELLS[cell].kind]
    if not parts:
        return False
    part = nearest_threads(parts, torch.get_num_threads())
    sizes = {"T": T, "B": B, "H": H}
    places = [place([math.log2(n) for n in part[of]], size) for of, size in sizes.items()]
    return _between(part[mode], places) < math.log2(1.0 if bfloat16 else MARGIN)


def _between(ratios: Sequence, places: Sequence[tuple[int, float]]) -> float:
    """The logarithm of the ratio at a place, of ratios nested in lists, one for each size."""
    (i, share), *others = places

    def at(i: int) -> float:
        return _between(ratios[i], others) if others else math.log2(ratios[i])

    low = at(i)
    return low + share * (at(i + 1) - low) if share else low
