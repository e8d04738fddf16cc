"""One direction of a layer with layer normalisation or noise, by one operator.

T steps, B samples, F features that the steps need of the input, H hidden.
"""

from typing import NamedTuple

from torch import Tensor

from bppsa_lightning import ops
from bppsa_lightning._cells import CELLS
from bppsa_lightning._context import is_transformed
from bppsa_lightning.nn import by_scan
from bppsa_lightning.recurrent.packed import Tensors


class Weights(NamedTuple):
    """Of a cell of `ops.regularised`, as there; without `w_ih` its x are sums."""

    cell: str
    w_hh: Tensor
    b_hh: Tensor | None = None
    norm_hh: Tensor | None = None
    norm_c: Tensor | None = None
    b_c: Tensor | None = None
    w_ih: Tensor | None = None
    b_ih: Tensor | None = None
    norm_ih: Tensor | None = None


def walks(weights: Weights, x: Tensor) -> bool:
    """Whether the operator takes such an input."""
    return ops.regularised_holds(x, weights.w_hh.shape[-1]) and not is_transformed()


def walk(
    weights: Weights, noise: by_scan.Noise, x: Tensor, states: Tensors, reverse: bool, marked: bool
) -> tuple[Tensor, ...]:
    """As `by_scan.walk`, with masks that are drawn in the same order."""
    cell, w_hh, *others = weights
    T, B = x.shape[:2]
    parts, H = 1 + CELLS[cell].has_c, w_hh.shape[-1]
    h0, c0 = (*states, None, None)[:2]
    like = x.new_empty(B, H)
    enters, p = None, 0.0
    kept: list[Tensor | None] = [None, None]
    if noise.training and noise.recurrent_dropout:
        enters = by_scan.entering_mask(noise.recurrent_dropout, like)
    if noise.training and noise.zoneout:
        kept[:parts] = [by_scan.drawn(noise.zoneout, (T, B, H), like) for _ in range(parts)]
    elif noise.zoneout:
        p = noise.zoneout
    if marked:  # in padding states stand still
        x, padding = x[..., :-1], x[..., -1:] != 0
        still = padding.expand(T, B, H)
        kept[:parts] = [still if k is None else k | still for k in kept[:parts]]
    operands = ops.Regularised(x, h0, c0, w_hh, *others, enters, *kept)  # type: ignore[call-arg]
    return ops.regularised(cell, operands, p, reverse)
