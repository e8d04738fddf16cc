"""Forward over ranks: each rank's span from the state that the ranks before it end in.

`relay` hands states from rank to rank; groups of samples follow each other, so that a rank works on
one while the next works on the one before. `meet` lets all ranks begin at once, each with a state
that the last steps of its neighbour's span have warmed up, and compares: the windows of
`bppsa_lightning.windows`, a rank each.

T steps of a rank, B samples, P ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa_lightning.divided.walk import Leaves, Walk
from bppsa_lightning.ranks import Exchange
from bppsa_lightning.windows import Engine, Levels

# xs, state, steps of the last piece, whether a backward follows, which gradients are wanted.
Start = Callable[[Leaves, Leaves, int, bool, Sequence[bool]], Walk]

# Warm-ups in which a gradient that fades has left the range of float32, as seen in fresh networks
# (states become one within their rounding in a fourth of that): it is looked at then.
_TAIL = 4


@dataclass
class Report:
    """What one call did, for `explain` and for what is learned from it.

    Attributes:
        forward, backward: how. warm: steps of warm-up.
        missed: ranks whose guess did not hold. passes: walks after the first.
        backward_passes: times that gradients were handed on and followed.
    """

    forward: str = ""
    backward: str = ""
    warm: int = 0
    missed: int = 0
    passes: int = 0
    backward_passes: int = 0


def relay(
    exchange: Exchange, start: Start, xs: Leaves, state: Leaves, groups: int, keep: bool,
    wanted: Sequence[bool],
) -> tuple[list[Walk], list[Tensor]]:  # fmt: skip
    """The walks of groups of samples; and the state behind the whole sequence.

    Args:
        xs: (T, B, ...) each. state: (B, ...) each, read by the first rank, of all their shapes.
    """
    walks = []
    for samples in groups_of(len(state[0]), groups):
        first = [s[samples].contiguous() for s in state]
        if not exchange.is_first:
            got = exchange.pass_on(None, first)
            assert got is not None
            first = got
        walk = start([x[:, samples] for x in xs], first, 0, keep, wanted)
        if not exchange.is_last:
            exchange.pass_on(walk.last, None)
        walks.append(walk)
    last = [torch.cat(parts) for parts in zip(*(walk.last for walk in walks), strict=True)]
    return walks, [s[-1] for s in exchange.gather(*last)]


def groups_of(B: int, groups: int) -> list[slice]:
    """Samples, in as many groups as there may be."""
    groups = max(1, min(groups, B))
    cuts = [B * g // groups for g in range(groups + 1)]
    return [slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]


def meet(
    exchange: Exchange, engine: Engine, start: Start, xs: Leaves, state: Leaves, warm: int,
    levels: Levels, keep: bool, wanted: Sequence[bool], report: Report,
    before: Leaves | None = None,
) -> tuple[list[Walk], list[Tensor]]:  # fmt: skip
    """The walk of all samples, once every rank's first state is the last one of the rank before.

    Args:
        warm: steps that a rank warms up for, no more than any rank holds.
        levels: what counts as met.
        before: the steps of xs before this rank's, where no rank has to ask for them.

    Returns:
        As `relay`.
    """
    first, walk = list(state), None
    if before is None:
        before = exchange.pass_on([x[-warm:] for x in xs], [x[:warm] for x in xs])
    if before is not None and not exchange.is_first:
        with torch.no_grad():
            first = [s.detach() for s in engine(before, [torch.zeros_like(s) for s in state])[1]]
    report.warm = warm
    while True:
        if walk is None:
            walk = start(xs, first, _TAIL * warm, keep, wanted)
        # Of all ranks, in one message: where they began, and where they end.
        found = exchange.gather(*first, *walk.last)
        began, ended = found[: len(first)], found[len(first) :]
        met = levels.met([s[1:] for s in began], [s[:-1] for s in ended])
        missed = met.count(False)
        if not missed:
            return [walk], [s[-1] for s in ended]
        report.passes += 1
        report.missed = max(report.missed, missed)
        if not exchange.is_first and not met[exchange.rank - 1]:
            first, walk = [s[exchange.rank - 1] for s in ended], None
