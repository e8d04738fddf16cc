"""On a CPU that multiplies bfloat16: whether PyTorch's layers, which then do, are faster than ours.

Under autocast, or with weights in bfloat16, PyTorch's products take the processor's instructions
for bfloat16: up to twice the multiply-adds of float32, in which ours are computed. An LSTM is
oneDNN's as a whole, an RNN or a GRU product by product. So a table has PyTorch's time over ours, of
each cell in training and in inference, at some T, B and H; between them it is interpolated, all on
logarithmic scales, and beyond them the last one counts. (Neither is always the faster one from some
number of steps on, as `hand_over` has it: short calls are faster here, long ones of many units
there.)

T steps, B batch, H hidden.
"""

import math
from collections.abc import Sequence

import torch

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import machine
from bppsa_lightning.planner.hand_over import nearest_threads, place


def pytorch_is_faster(cell: str, mode: str, T: int, B: int, H: int) -> bool:
    """Whether PyTorch's layer is the faster one.

    Args:
        cell: a name of `CELLS`.
        mode: as `Request.bfloat16`.
    """
    parts = [part for part in machine.of_bfloat16() if part["cell"] == CELLS[cell].kind]
    if not parts:
        return False
    part = nearest_threads(parts, torch.get_num_threads())
    sizes = {"T": T, "B": B, "H": H}
    places = [place([math.log2(n) for n in part[of]], size) for of, size in sizes.items()]
    return _between(part[mode], places) < 0.0


def _between(ratios: Sequence, places: Sequence[tuple[int, float]]) -> float:
    """The logarithm of the ratio at a place, of ratios nested in lists, one for each size."""
    (i, share), *others = places

    def at(i: int) -> float:
        return _between(ratios[i], others) if others else math.log2(ratios[i])

    low = at(i)
    return low + share * (at(i + 1) - low) if share else low
