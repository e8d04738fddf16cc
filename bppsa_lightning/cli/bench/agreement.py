"""Do both compute the same?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

# The largest relative difference that is taken for rounding, by dtype; of others exactly equal.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}


class Agreement(NamedTuple):
    """The tensor with the largest error.

    Attributes:
        error: the largest difference in a tensor over the largest magnitude in it.
        where: the tensor's name.
        holds: whether all are within rounding.
    """

    error: float
    where: str
    holds: bool

    def data(self) -> dict[str, object]:
        """For JSON, which has no infinity."""
        error = self.error if self.error < float("inf") else None
        return {"error": error, "where": self.where, "agree": self.holds}


def agreement(stock: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> Agreement:
    """Compares tensors by name."""
    worst = Agreement(0.0, next(iter(stock), ""), True)
    if one_sided := sorted(stock.keys() ^ ours.keys()):
        return Agreement(float("inf"), one_sided[0], False)
    for name, expected in stock.items():
        error = relative_error(ours[name], expected)
        holds = error <= ROUNDING.get(expected.dtype, 0.0)
        if (not holds, error) > (not worst.holds, worst.error):
            worst = Agreement(error, name, holds)
    return worst


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Infinite where shapes differ, or one is not finite and the other is not the same."""
    if found.shape != expected.shape:
        return float("inf")
    if not found.numel() or torch.equal(found, expected):
        return 0.0
    a, b = found.double(), expected.double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf")
    a, b = a[b.isfinite()], b[b.isfinite()]
    if not b.numel():
        return 0.0
    difference, scale = float((a - b).abs().max()), float(b.abs().max())
    return difference / scale if scale else float("inf") if difference else 0.0
