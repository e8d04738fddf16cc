"""Whether a step is one for each sample by itself: by calls with other samples beside them.

T steps, B samples.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bppsa_lightning.steps.engine import Step
from bppsa_lightning.steps.trees import flatten, mapped
from bppsa_lightning.windows.cut import Leaves

MIXES = "it mixes samples, or tells them apart by their place"
DRAWS = "it draws random numbers, which depend on the order of the steps"

# Of an input's time steps, those that are compared at first; and numbers at once of the others.
_FIRST, _AT_ONCE = 8, 1 << 20

# How far results of other samples beside them may move a sample's: of its dtype's spacing.
_SPACINGS = 64


def mixes_samples(step: Step, result: Any, xs: Sequence[Any], inputs: Leaves) -> str | None:
    """Why a step is not one for each sample by itself, as far as a few more calls show; or None.

    Args:
        result: of the first time step.
        xs: of the first time steps. inputs: the leaves of those of all, (T, B, ...) each.
    """
    state = result[0]
    with torch.no_grad():
        for x in xs[1:-1]:
            state = step(*mapped(copy, (state, x)))[0]
        (states, tree), (of_x, x_tree) = flatten(state), flatten(xs[-1])

        def after(leaves: Leaves) -> list[Tensor]:
            of_state, rest = leaves[: len(states)], leaves[len(states) :]
            given = tree.unflatten(of_state), x_tree.unflatten(rest)
            return _tensors_of(step(*mapped(copy, given)))

        leaves = [*states, *of_x]
        own, same = after(leaves), after(leaves)
        for a, b in zip(own, same, strict=True):
            if not torch.equal(a.nan_to_num(), b.nan_to_num()):
                return DRAWS
        others = [_others(t, e) for t, e in zip(states, tree.leaves(result[0]), strict=True)]
        others += [_rows(t, x) for t, x in zip(of_x, inputs, strict=True)]
        try:
            # (All samples have a mask, or none: what asks for any, or for all, shows in one way.)
            swapped = [
                other[0] if _is_rare(t, other[0]) else t
                for t, other in zip(leaves, others, strict=True)
            ]
            rare = any(a is not b for a, b in zip(swapped, leaves, strict=True))
            blocks = [
                torch.cat([first, t, far, t, *([rarely] if rare else []), last])
                for t, rarely, (first, far, last) in zip(leaves, swapped, others, strict=True)
            ]
            beside = after(blocks)
            if not _agree(own, beside, (1, 3), 5 + rare):
                return MIXES
            if rare and not _agree(after(swapped), beside, (4,), 6):
                return MIXES
        except Exception as error:  # whatever a step says to so many samples
            seen = words(error)
            return f"it cannot take more samples ({seen}); what it reads of each belongs into xs"
    return None


def _agree(own: Leaves, beside: Leaves, places: Sequence[int], blocks: int) -> bool:
    """Whether results of some samples are those of the same ones beside others, in some blocks."""
    for a, b in zip(own, beside, strict=True):
        B = a.shape[0]
        if b.shape != (blocks * B, *a.shape[1:]):
            return False
        if not all(_close(a, b[i * B : (i + 1) * B]) for i in places):
            return False
    return True


def words(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _tensors_of(result: Any) -> list[Tensor]:
    return [t.detach() for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]


def copy(t: Tensor) -> Tensor:
    return t.detach().clone()


def _is_rare(t: Tensor, other: Tensor) -> bool:
    """Whether all samples have the same whole numbers, and there are others."""
    return not t.is_floating_point() and bool((t == t[:1]).all()) and not torch.equal(t, other)


def _others(t: Tensor, earlier: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a state: near and far, or of another step; numbers that index something stay small."""
    if t.dtype == torch.bool:
        return ~t, (~t).flip(0), ~t
    near = (2 * t + 1 if t.is_floating_point() else earlier).flip(0)
    return near, 100 * near if t.is_floating_point() else near, near


def _rows(t: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of an input: the same, or, of whole numbers, which may index, such as are in x."""
    if t.is_floating_point():
        return _others(t, t)
    first = _another_row(x, t[0])
    last = first if torch.equal(t[0], t[-1]) else _another_row(x, t[-1])
    return first.expand_as(t), first.expand_as(t), last.expand_as(t)


def _another_row(x: Tensor, row: Tensor) -> Tensor:
    """What some sample has in some time step of x, other than this; this if all have it."""
    if x.stride(0) == 0:
        x = x[:1]
    B, size = x.shape[1], row.numel()
    for part in (x[:_FIRST], *x[_FIRST:].split(_AT_ONCE // max(1, B * size) + 1)):
        differs = (part != row).reshape(len(part) * B, size).any(1)
        if differs.any():
            at = int(differs.int().argmax())
            return part[at // B, at % B]
    return row


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    near = _SPACINGS * torch.finfo(a.dtype).eps
    scale = float(a.abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=near, atol=near * scale, equal_nan=True)
