"""A sequence divided over ranks, as one differentiable function.

T steps of this rank, B samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bppsa_lightning.divided import gradients, states
from bppsa_lightning.divided.states import Report, Start
from bppsa_lightning.divided.walk import Leaves, NoSteps, Walk
from bppsa_lightning.ops._autograd import once_differentiable
from bppsa_lightning.ranks import Exchange
from bppsa_lightning.windows import Engine, Levels, differentiated


class Way(NamedTuple):
    """How a sequence is walked over ranks. All ranks have the same.

    Attributes:
        forward: "relay" or "meet". backward: "relay", "compose" or "follow".
        groups: of samples, that follow each other from rank to rank.
        warm: steps of warm-up, and levels: what counts as met, of "meet".
    """

    forward: str = "relay"
    backward: str = "relay"
    groups: int = 1
    warm: int = 0
    levels: Levels | None = None


@dataclass
class Division:
    """One call: what walks this rank's span, and the others.

    Attributes:
        begun: called when a backward begins. before: the steps of xs before this rank's span, if
            they are here; all ranks have theirs, or none has.
        ys, xs, states: how many there are. keep: whether a backward may follow.
        engine: of a step's tensors. start: walks the span by it.
        like: ys of one step, (1, ...) each, for a rank that holds none.
    """

    exchange: Exchange
    engine: Engine
    start: Start
    way: Way
    like: Sequence[Tensor]
    report: Report = field(default_factory=Report)
    begun: Callable[[], None] | None = None
    before: Tensor | None = None
    ys: int = 0
    xs: int = 0
    states: int = 0
    keep: bool = False

    def __call__(self, xs: Leaves, state: Leaves) -> tuple[list[Tensor], list[Tensor]]:
        """This rank's ys, (T, B, ...) each, and the state after the whole sequence.

        Differentiable once; gradients of ys are this rank's, that of the last state is read on the
        last rank alone, that of `state` is found on the first rank, and zero elsewhere; those of
        the engine's tensors are this rank's terms of a sum over ranks. All ranks run forward, and
        all run backward.
        """
        self.xs, self.states = len(xs), len(state)
        self.keep = differentiated(self.engine, xs, state)
        outputs = _Divided.apply(self, *xs, *state, *self.engine.tensors)
        return list(outputs[: self.ys]), list(outputs[self.ys :])

    def forward(
        self, xs: Leaves, state: Leaves, keep: bool, wanted: Sequence[bool]
    ) -> tuple[list[Walk], list[Tensor]]:
        """The walks of this rank, and the state after the whole sequence."""
        way, report, start = self.way, self.report, self._start
        report.forward, report.backward = way.forward, way.backward
        if way.forward == "relay":
            groups = 1 if way.backward != "relay" else way.groups
            return states.relay(self.exchange, start, xs, state, groups, keep, wanted)
        assert way.levels is not None
        before = None if self.before is None else [self.before]
        return states.meet(
            self.exchange, self.engine, start, xs, state, way.warm, way.levels, keep, wanted,
            report, before,
        )  # fmt: skip

    def _start(
        self, xs: Leaves, state: Leaves, tail: int, keep: bool, wanted: Sequence[bool]
    ) -> Walk:
        if len(xs[0]):
            return self.start(xs, state, tail, keep, wanted)
        ys = [y.new_empty(0, len(state[0]), *y.shape[1:]) for y in self.like]
        return NoSteps(xs, state, ys, self.engine.tensors)

    def backward(
        self, walks: Sequence[Walk], grad_ys: list[Tensor | None], grad_last: Leaves
    ) -> list[Tensor]:
        exchange, backward = self.exchange, self.way.backward
        if backward == "compose":
            return gradients.compose(exchange, walks, grad_ys, grad_last)
        if backward == "follow":
            left = gradients.follow(exchange, walks, grad_ys, grad_last, self.report)
            if left is not None:
                return left
            for walk in walks:
                walk.forget()
        return gradients.relay(exchange, walks, grad_ys, grad_last)


class _Divided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Division, *tensors: Tensor) -> tuple[Tensor, ...]:
        xs, state = tensors[: call.xs], tensors[call.xs : call.xs + call.states]
        needed = ctx.needs_input_grad[1:]
        wanted = (*needed[: call.xs], *needed[call.xs + call.states :])
        walks, last = call.forward(
            [x.detach() for x in xs], [s.detach() for s in state], call.keep, wanted
        )
        ys = [_joined(parts, 1) for parts in zip(*(w.ys for w in walks), strict=True)]
        call.ys = len(ys)
        kept = [walk.take() for walk in walks]
        ctx.call, ctx.walks, ctx.needed, ctx.kept = call, walks, needed, [*map(len, kept)]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *ys, *(t for of_walk in kept for t in of_walk))
        ctx.last = [(s.shape, s.dtype, s.device) for s in last]
        return (*ys, *last)

    @staticmethod
    @once_differentiable("a layer divided over ranks")
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        call, walks = ctx.call, ctx.walks
        if walks is None:
            raise RuntimeError(
                "Trying to backward through the graph of a divided layer a second time: specify "
                "retain_graph=True in the first backward"
            )
        kept = iter(ctx.saved_tensors[len(ctx.needed) :])  # raises if one was changed in place
        ys = list(islice(kept, call.ys))
        samples = states.groups_of(ctx.last[0][0][0], len(walks))
        for walk, count, mine in zip(walks, ctx.kept, samples, strict=True):
            walk.give(list(islice(kept, count)), [y[:, mine] for y in ys])
        if call.begun is not None:
            call.begun()
        grad_ys = list(given[: call.ys])
        grad_last = [
            torch.zeros(shape, dtype=dtype, device=device) if g is None else g.contiguous()
            for g, (shape, dtype, device) in zip(given[call.ys :], ctx.last, strict=True)
        ]
        left = call.backward(walks, grad_ys, grad_last)
        of_xs, of_own = _found(walks)
        if torch._C._autograd._get_current_graph_task_keep_graph():
            for walk in walks:
                walk.forget()
                walk.take()
        else:
            ctx.walks = None
        if not call.exchange.is_first:
            of_states = ctx.needed[call.xs : call.xs + call.states]
            left = [torch.zeros_like(g) if w else g for g, w in zip(left, of_states, strict=True)]
        found = (*of_xs, *left, *of_own)
        return (None, *(g if w else None for g, w in zip(found, ctx.needed, strict=True)))


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _found(walks: Sequence[Walk]) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The gradients of xs and of tensors, of all groups of samples."""
    parts = [walk.found() for walk in walks]
    of_xs = [
        None if same[0] is None else _joined(same, 1)  # type: ignore[arg-type]
        for same in zip(*(xs for xs, _ in parts), strict=True)
    ]
    of_own = []
    for same in zip(*(own for _, own in parts), strict=True):
        terms = [t for t in same if t is not None]
        of_own.append(sum(terms[1:], terms[0]) if terms else None)
    return of_xs, of_own
