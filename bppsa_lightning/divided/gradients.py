"""Backward over ranks: what reaches each rank's end from the ranks behind it.

`relay` hands vectors from rank to rank. `compose` lets every rank compose its span to one map, and
scans the maps by recursive doubling (`suffix`). `follow` lets every rank begin with nothing from
behind; what then leaves a span is handed on and followed as far as it reaches, which is not far
where gradients fade. All three are the chain rule, in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bppsa_lightning import ranks
from bppsa_lightning.divided.states import Report, groups_of
from bppsa_lightning.divided.walk import Gradients, Leaves, Walk
from bppsa_lightning.ranks import Exchange, Map


def relay(
    exchange: Exchange, walks: Sequence[Walk], grad_ys: Gradients, grad_last: Leaves
) -> list[Tensor]:
    """The gradient before this rank's span, by walks of groups of samples.

    Args:
        grad_ys: of this rank's ys. grad_last: behind the whole sequence, read by the last rank.
    """
    left = []
    for walk, samples in zip(walks, groups_of(len(grad_last[0]), len(walks)), strict=True):
        ending = [g[samples] for g in grad_last]
        pull = _pull(
            exchange, walk, [None if g is None else g[:, samples] for g in grad_ys], ending
        )
        left.append(ranks.relay(exchange, torch.zeros_like(_flat(ending)), pull)[0])
    return [torch.cat(parts) for parts in zip(*left, strict=True)]


def compose(
    exchange: Exchange, walks: Sequence[Walk], grad_ys: Gradients, grad_last: Leaves
) -> list[Tensor]:
    """The same, with every rank's map composed at the same time."""
    [walk] = walks
    b = torch.zeros_like(_flat(grad_last))
    nothing = _parts(b, grad_last)
    if not exchange.is_first:
        b = _flat(walk.start(grad_ys, grad_last if exchange.is_last else nothing))
    B, S = b.shape
    inner = not exchange.is_first and not exchange.is_last
    own = Map.of(walk.jacobian() if inner else b.new_zeros(B, S, S), b)
    left: list[Tensor] = ranks.carry(exchange, own, _pull(exchange, walk, grad_ys, grad_last))[0]
    return left


def _pull(
    exchange: Exchange, walk: Walk, grad_ys: Gradients, grad_last: Leaves
) -> Callable[[Tensor], tuple[list[Tensor], Tensor]]:
    def pull(behind: Tensor) -> tuple[list[Tensor], Tensor]:
        ending = grad_last if exchange.is_last else _parts(behind, grad_last)
        left = walk.pull(grad_ys, ending)
        return left, _flat(left)

    return pull


def follow(
    exchange: Exchange, walks: Sequence[Walk], grad_ys: Gradients, grad_last: Leaves, report: Report
) -> list[Tensor] | None:
    """The same, with what comes from behind followed afterwards; None where gradients overflow."""
    [walk] = walks
    device, nothing = grad_last[0].device, [torch.zeros_like(g) for g in grad_last]
    total = left = walk.pull(grad_ys, grad_last if exchange.is_last else nothing)
    some_alive = exchange.size > 1
    sound = _is_finite(left)
    while some_alive:
        report.backward_passes += 1
        behind = exchange.pass_on(left, nothing, -1)
        left = nothing if behind is None else walk.pull([None] * len(grad_ys), behind)
        total = [a + b for a, b in zip(total, left, strict=True)]
        sound = sound and _is_finite(left)
        alive = not exchange.is_first and any(bool(g.any()) for g in left)
        some_alive, some_unsound = map(bool, exchange.most([alive, not sound], device))
        if some_unsound:
            return None
    return total if sound else None


def _is_finite(gradients: Leaves) -> bool:
    return all(bool(g.isfinite().all()) for g in gradients)


def _flat(parts: Leaves) -> Tensor:
    """Of (B, ...) each, (B, S)."""
    return torch.cat([p.flatten(1) for p in parts], 1)


def _parts(flat: Tensor, like: Leaves) -> list[Tensor]:
    each = flat.split([math.prod(g.shape[1:]) for g in like], 1)
    return [p.reshape(g.shape) for p, g in zip(each, like, strict=True)]
