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
from bppsa_lightning.divided.walk import Gradients, Leaves, Walk, sizes_of
from bppsa_lightning.ranks import DenseMaps, Exchange, Map


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
    b = nothing = torch.zeros_like(_flat(grad_last))
    if not exchange.is_first:
        behind = grad_last if exchange.is_last else _parts(nothing, grad_last)
        b = _flat(walk.start(grad_ys, behind))
    B, S = b.shape
    inner = not exchange.is_first and not exchange.is_last
    own = Map.of(walk.jacobian() if inner else b.new_zeros(B, S, S), b)
    pull = _pull(exchange, walk, grad_ys, grad_last)
    left: list[Tensor] = ranks.carry(exchange, DenseMaps(own), own, nothing, pull)[0]
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
    """The same, with what comes from behind followed afterwards; None where gradients overflow.

    What leaves the spans of all ranks goes to all of them in one message, so that all know whether
    there is anything left to follow.
    """
    [walk] = walks
    nothing = [torch.zeros_like(g) for g in grad_last]
    total = left = walk.pull(grad_ys, grad_last if exchange.is_last else nothing)
    came: list[Tensor] = []
    for _ in range(exchange.size - 1):  # and then what the last rank sent has reached the first
        [of_all] = exchange.gather(_flat(left))
        sizes = sizes_of(of_all)
        if not all(map(math.isfinite, sizes)):
            return None
        if not any(sizes[1:]):
            return total
        report.backward_passes += 1
        if exchange.is_last or not sizes[exchange.rank + 1]:
            left = nothing
            continue
        came.append(of_all[exchange.rank + 1])
        left = walk.pull([None] * len(grad_ys), _parts(came[-1], nothing))
        total = [a + b for a, b in zip(total, left, strict=True)]
    if all(math.isfinite(*sizes_of(g[None])) for g in left):
        return total
    # All that is behind has come by now: once more, in the order of one process.
    walk.forget()
    behind = grad_last if exchange.is_last else _parts(sum(came, _flat(nothing)), nothing)
    return walk.pull(grad_ys, behind)


def _flat(parts: Leaves) -> Tensor:
    """Of (B, ...) each, (B, S)."""
    return parts[0].flatten(1) if len(parts) == 1 else torch.cat([p.flatten(1) for p in parts], 1)


def _parts(flat: Tensor, like: Leaves) -> list[Tensor]:
    if len(like) == 1:
        return [flat.reshape(like[0].shape)]
    each = flat.split([math.prod(g.shape[1:]) for g in like], 1)
    return [p.reshape(g.shape) for p, g in zip(each, like, strict=True)]
