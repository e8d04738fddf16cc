"""The options of an optimizer's groups as they were when a mini-batch entered.

A scheduler goes on with every mini-batch; update k is done d mini-batches later, with the learning
rate that it would have had at once. What the optimizer sets by itself (a count of its steps, as
some keep it there) goes on with the updates, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

Options = list[dict[str, Any]]


class DelayedOptions:
    """The options of all mini-batches whose update is still to come."""

    def __init__(self) -> None:
        self._kept: dict[int, Options] = {}
        self._entered = 0
        self._own: set[str] = set()  # what the optimizer sets

    def enter(self, k: int, optimizer: Optimizer) -> None:
        """Keeps those of mini-batch k, which enters.

        Raises:
            RuntimeError: one before it has entered without a step of the optimizer.
        """
        if k != self._entered:
            raise _left_out()
        self._kept[k] = options_of(optimizer)
        self._entered = k + 1

    @contextmanager
    def used(self, k: int, optimizer: Optimizer) -> Iterator[None]:
        """Inside, where update k is done, the groups have those of mini-batch k.

        Raises:
            RuntimeError: it has entered without a step of the optimizer.
        """
        if k not in self._kept:
            raise _left_out()
        kept = [
            {name: value for name, value in group.items() if name not in self._own}
            for group in self._kept.pop(k)
        ]
        before = [{name: group[name] for name in given} for group, given in _pairs(optimizer, kept)]
        for group, given in _pairs(optimizer, kept):
            group.update(given)
        at_step = options_of(optimizer)
        try:
            yield
        finally:
            for group, was in _pairs(optimizer, at_step):
                self._own |= {n for n in group if n != "params" and not _is_same(n, group, was)}
            for group, own in _pairs(optimizer, before):
                group.update({name: v for name, v in own.items() if name not in self._own})


def options_of(optimizer: Optimizer) -> Options:
    """All options of each group: learning rate, momentum, weight decay, …."""
    return [
        {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


def _is_same(name: str, group: dict[str, Any], other: dict[str, Any]) -> bool:
    if name not in other:
        return False
    one, two = group[name], other[name]
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return torch.equal(one, two)
    return one is two or bool(one == two)


def _pairs(optimizer: Optimizer, options: Options) -> Iterator[tuple[dict[str, Any], Any]]:
    yield from zip(optimizer.param_groups, options, strict=True)


def _left_out() -> RuntimeError:
    return RuntimeError(
        "optimizer_step: found a mini-batch without a step of the optimizer, wanted one for each: "
        "with delays its gradient comes in a later step. To leave some out: "
        "LayerPipeStrategy(delays=False)"
    )
