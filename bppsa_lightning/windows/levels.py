"""When two walks have met: as close as the walk's own rounding, which is measured.

A walk in float32 is not the truth but a cloud around it: the recurrence amplifies the rounding of
each step, and forgets it again. How wide the cloud is was seen by walking a few short pieces in
float64 beside it, for each unit of the state by itself. Two walks that have forgotten where they
began are then about as far from each other as each is from the truth, and a walk that goes on from
either is one that a float32 walk could have come by.

In a silence a state fades to nothing, and what is left of it is far below any level. It still
decides: a relu passes a gradient for 1e-20, and none for 0. So levels shrink with a sample's state.

The argument ends where a unit was silent in all pieces that were looked at, so that nothing was
rounded there: its level is then the spacing of its numbers, and a window that is further off is
walked again, though it may have been good. And it says nothing of what the state does not show:
what leaves no trace in the state cannot change what follows either.
"""

from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bppsa_lightning import ops
from bppsa_lightning.windows.cut import Leaves

# Two walks of one truth, each as far from it as the furthest that was seen, and one more for what
# was not seen.
_WALKS_APART = 3

# Of a number's own spacing: the fewest that a difference is rounding.
_SPACINGS = 4

# States that many times smaller than the largest are as usual as those.
_ORDINARY = 4


class Levels(NamedTuple):
    """Of each part of the state, per unit: how far a walk is from the truth.

    Attributes:
        rounding: a tensor each, of a sample's shape, in the state's dtype.
        sizes: of each part, the largest number of the states in which that was seen.
        gradients: how far a walk's gradients are from the truth, in roundings of their sizes.
    """

    rounding: tuple[Tensor, ...]
    sizes: tuple[float, ...]
    gradients: float = 1.0

    def met(self, guessed: Leaves, true: Leaves) -> list[bool]:
        """Which of n pairs of states are the same as far as rounding goes.

        Args:
            guessed, true: (n, B, ...) each: of n windows, where they began and should have.
        """
        if not all(map(ops.states_met_is_for, true, self.rounding)):
            found: list[bool] = self.met_in_torch(guessed, true).tolist()
            return found
        parts = zip(guessed, true, self.rounding, self.sizes, strict=True)
        of_parts = [ops.states_met(*part) for part in parts]
        return [all(of_window) for of_window in zip(*of_parts, strict=True)]

    def met_in_torch(self, guessed: Leaves, true: Leaves) -> Tensor:
        """The same in plain PyTorch, for all dtypes and devices: (n,) bool."""
        parts = zip(guessed, true, self.rounding, self.sizes, strict=True)
        return reduce(torch.logical_and, [self._near(*part).flatten(1).all(1) for part in parts])

    @staticmethod
    def _near(a: Tensor, b: Tensor, level: Tensor, size: float) -> Tensor:
        """Number by number."""
        if not b.is_floating_point() or not b.numel():
            return a == b
        rounding = b.abs()
        largest = rounding.amax(tuple(range(2, b.dim())), keepdim=True) if b.dim() > 2 else rounding
        share = (largest * (_WALKS_APART * _ORDINARY / max(size, 1e-30))).clamp_(max=_WALKS_APART)
        # (No fused multiply-add: other processors have to come to the same verdict.)
        rounding.mul_(_SPACINGS * torch.finfo(b.dtype).eps).add_(share * level)
        near = (a - b).abs_() <= rounding.clamp_(max=torch.finfo(b.dtype).max)
        # Infinite ones are equal, if at all, and NaN is near to NaN.
        return near | (a == b) | (a.isnan() & b.isnan())

    def least_gradients(self, g: Tensor) -> Tensor:
        """What is too little to matter beside a state's gradients (n, ...), number by number."""
        of = torch.finfo(g.dtype)
        roundings = _WALKS_APART * self.gradients * of.eps
        return (_sizes_of(g) * roundings).clamp_(of.tiny, of.max)  # beside inf nothing is little


def saved(levels: Levels | None) -> dict[str, Any]:
    """For a checkpoint."""
    if levels is None:
        return {"levels": None, "sizes": None, "gradients": None}
    return {
        "levels": [r.cpu() for r in levels.rounding],
        "sizes": list(levels.sizes),
        "gradients": levels.gradients,
    }


def loaded(state: dict[str, Any], device: torch.device) -> Levels | None:
    """From a checkpoint."""
    if state["levels"] is None:
        return None
    rounding = tuple(r.to(device) for r in state["levels"])
    return Levels(rounding, tuple(state["sizes"]), state["gradients"])


def rounding_of(single: Leaves, double: Leaves, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Per unit, how far walks in `dtype` are from the truth, by one in float32 and in float64.

    Args:
        single, double: states (n, ...) each, of the same walks in both precisions. Of parts that
            are not floating-point, as they are.
    """
    found, share = [], torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
    for a, b in zip(single, double, strict=True):
        if not a.is_floating_point():
            found.append(torch.zeros_like(a[0]))
            continue
        spacing = torch.finfo(torch.float32).eps * b.abs()
        apart = torch.maximum((a.double() - b).abs(), spacing).nan_to_num(0.0, 0.0, 0.0).amax(0)
        # Few samples are few draws of a unit's rounding: units lend each other what is usual.
        size = b.abs().nan_to_num(0.0, 0.0, 0.0).amax(0)
        shares = (apart / size)[size > 0]
        usual = shares.median() * size if shares.numel() else apart
        found.append(torch.maximum(apart, usual) * share)
    return tuple(found)


def rounding_of_gradients(single: Leaves, double: Leaves) -> float:
    """How far gradients in float32 are from those in float64, (n, ...) each, in roundings."""
    found = 1.0
    for a, b in zip(single, double, strict=True):
        if not b.numel():
            continue
        rounding = torch.finfo(torch.float32).eps * _sizes_of(b)
        found = max(found, float(((a - b).abs() / rounding).nan_to_num(1.0, 1.0, 1.0).max()))
    return found


def _sizes_of(g: Tensor) -> Tensor:
    """Of gradients (n, ...), number by number: of the sample's largest, and of the unit's."""
    flat = g.abs().flatten(1)
    size = torch.minimum(flat.amax(1, keepdim=True), flat.amax(0, keepdim=True))
    return size.clamp_(min=torch.finfo(g.dtype).tiny).reshape(g.shape)
