"""The options of an optimizer's groups as they were when a mini-batch entered.

A scheduler goes on with every mini-batch; update k is done d mini-batches later, with the learning
rate that it would have had at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

Options = list[dict[str, Any]]


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


@contextmanager
def with_options(optimizer: Optimizer, options: Options) -> Iterator[None]:
    """Inside, the groups have these options."""
    before = [{name: group[name] for name in kept} for group, kept in _pairs(optimizer, options)]
    for group, kept in _pairs(optimizer, options):
        group.update(kept)
    try:
        yield
    finally:
        for group, kept in zip(optimizer.param_groups, before, strict=True):
            group.update(kept)


def _pairs(optimizer: Optimizer, options: Options) -> Iterator[tuple[dict[str, Any], Any]]:
    yield from zip(optimizer.param_groups, options, strict=True)
