"""Curves of a training, however long it is, in few numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_POINTS = 1024  # at most, and half of it at least once there are as many


class Curve:
    """Values over steps; each point is the mean of as many as needed for few points.

    Values stay where they are, on a GPU too, until they are asked for or many have come.
    """

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []  # of `_each` values each
        self._each = 1
        self._waiting: list[tuple[int, Any]] = []

    def add(self, step: int, value: Any) -> None:
        """A number, or a tensor that holds one."""
        self._waiting.append((step, value.detach() if isinstance(value, Tensor) else value))
        if len(self._waiting) >= _POINTS:
            self._settle(whole=False)

    def read(self) -> dict[str, list[Any]]:
        """{"steps": …, "values": …}, None for a value that is not finite."""
        self._settle(whole=True)
        values = [v if math.isfinite(v) else None for _, v in self._points]
        return {"steps": [s for s, _ in self._points], "values": values}

    def _settle(self, whole: bool) -> None:
        """Makes points of what waits.

        Args:
            whole: whether a last few make a point, too.
        """
        numbers = _numbers([value for _, value in self._waiting])
        pairs = [(float(step), n) for (step, _), n in zip(self._waiting, numbers, strict=True)]
        self._waiting = []
        while pairs:
            if len(pairs) < self._each and not whole:
                self._waiting = [(int(step), value) for step, value in pairs]
                break
            self._points.append(_mean(pairs[: self._each]))
            pairs = pairs[self._each :]
            if len(self._points) >= _POINTS:
                self._points = [_mean(self._points[i : i + 2]) for i in range(0, _POINTS, 2)]
                self._each *= 2


def _mean(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return pairs[-1][0], sum(value for _, value in pairs) / len(pairs)


def _numbers(values: list[Any]) -> list[float]:
    """As floats; tensors of one device by one copy."""
    tensors = [v for v in values if isinstance(v, Tensor)]
    if not tensors:
        return [float(v) for v in values]
    found = iter(torch.stack([t.float().reshape(()) for t in tensors]).tolist())
    return [next(found) if isinstance(v, Tensor) else float(v) for v in values]
