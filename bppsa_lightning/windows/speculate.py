"""The walk of a sequence in windows, verified, as one differentiable function."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.ops._autograd import saved_tensors
from bppsa_lightning.windows.backward import backward
from bppsa_lightning.windows.cut import Cut, Leaves
from bppsa_lightning.windows.engine import Engine
from bppsa_lightning.windows.forward import Tape, forward, in_one
from bppsa_lightning.windows.in_place import InPlace, Whole
from bppsa_lightning.windows.levels import Levels
from bppsa_lightning.windows.report import Report


def speculate(
    engine: Engine, xs: Leaves, state: Leaves, cut: Cut, levels: Levels, report: Report,
    checkpoint: int = 0,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """What ``engine(xs, state)`` returns, by the windows of `cut`.

    Args:
        xs: (T, B, ...) each. state: (B, ...) each; new windows begin at zeros of its shapes.
        levels: what counts as met.
        report: what happened is written there: in the forward, and in the backward.
        checkpoint: steps of which only the state before them is kept, and which the backward walks
            again; 0 to keep all. (A sequence that is walked where it lies is not checkpointed.)

    Returns:
        ys, (T, B, ...) each, and the last state. Differentiable as often as the engine is: second
        derivatives are those of its walk.
    """
    inputs = (*xs, *state, *engine.tensors)
    kept = differentiated(engine, xs, state)
    sequence = engine.in_place(
        [x.detach() for x in xs], [s.detach() for s in state],
        [t.detach() for t in engine.tensors], kept,
    )  # fmt: skip
    if sequence is not None and not kept:
        last = sequence.forward(list(state), cut, levels, report)
        return sequence.results[: sequence.ys], last
    if not kept:
        tape = forward(engine, xs, state, cut, levels, report, keep=False)
        return list(tape.ys), list(tape.last)
    call = _Call(engine, len(xs), len(state), cut, levels, report, checkpoint)
    if sequence is not None:
        outputs = _InPlaceSpeculation.apply(call, sequence, *inputs)
    else:
        outputs = _Speculation.apply(call, *inputs)
    return list(outputs[: call.ys]), list(outputs[call.ys :])


def checkpointed(
    engine: Engine, xs: Leaves, state: Leaves, checkpoint: int
) -> tuple[list[Tensor], list[Tensor]]:
    """What ``engine(xs, state)`` returns, walked as it is, with checkpoints as in `speculate`."""
    whole = Cut(len(xs[0]), windows=1, span=len(xs[0]), warm=0)
    call = _Call(engine, len(xs), len(state), whole, Levels((), ()), Report(), checkpoint)
    outputs = _Speculation.apply(call, *xs, *state, *engine.tensors)
    return list(outputs[: call.ys]), list(outputs[call.ys :])


def differentiated(engine: Engine, xs: Leaves, state: Leaves) -> bool:
    """Whether a backward may follow a call."""
    tensors = (*xs, *state, *engine.tensors)
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


class _Call:
    """The arguments of one call that are no tensors; `ys`, how many outputs come before states."""

    def __init__(
        self, engine: Engine, xs: int, states: int, cut: Cut, levels: Levels, report: Report,
        checkpoint: int,
    ) -> None:  # fmt: skip
        self.engine, self.xs, self.states = engine, xs, states
        self.cut, self.levels, self.report = cut, levels, report
        self.checkpoint, self.ys = checkpoint, 0

    def walk(self, xs: Leaves, states: Leaves, wants_xs: Sequence[bool]) -> Tape:
        """For a backward."""
        engine = self.engine.with_own_tensors()
        if self.cut.windows == 1:
            return in_one(engine, xs, states, wants_xs, self.checkpoint)
        return forward(
            engine, xs, states, self.cut, self.levels, self.report, keep=True, wants_xs=wants_xs,
            checkpoint=self.checkpoint,
        )  # fmt: skip

    def parts(self, tensors: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """xs, states and the engine's own, of what was given to `apply`, or of its gradients."""
        a, b = self.xs, self.xs + self.states
        return tensors[:a], tensors[a:b], tensors[b:]

    def differentiable_gradients(
        self, tensors: Sequence[Tensor], given: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """The gradients of what was given to `apply`, with a graph behind them: by one walk."""
        xs, states, own = self.parts(tensors)
        return self.engine.differentiable_gradients(xs, states, own, given, wanted)


class _Speculation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        xs, states, _ = call.parts(tensors)
        wanted = ctx.needs_input_grad[1:]
        ctx.call = call
        ctx.set_materialize_grads(False)
        with torch.enable_grad():
            tape = call.walk(
                [x.detach() for x in xs], [s.detach() for s in states], call.parts(wanted)[0]
            )
        ctx.tape = tape
        ctx.save_for_backward(*tensors, *call.engine.constants)
        call.ys = len(tape.ys)
        outputs = (*tape.ys, *tape.last)
        ctx.mark_non_differentiable(*call.engine.without_gradient(tape.ys, tape.last))
        tape.ys, tape.last = [], []
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        call, tape, wants = ctx.call, ctx.tape, ctx.needs_input_grad[1:]
        if all(g is None for g in gradients):  # behind a gate that is closed
            return (None,) * (1 + len(wants))
        if torch.is_grad_enabled():
            given = ctx.saved_tensors[: len(wants)]
            return (None, *call.differentiable_gradients(given, gradients, wants))
        if tape is None:
            raise RuntimeError(
                "Trying to backward through the graph of a recurrence a second time: specify "
                "retain_graph=True in the first backward"
            )
        if call.checkpoint:  # what is walked again must be what was walked
            _ = ctx.saved_tensors  # raises if one was changed
        wanted = call.parts(wants)
        grad_ys, grad_last = gradients[: call.ys], gradients[call.ys :]
        found = backward(tape, list(grad_ys), list(grad_last), wanted, call.report)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.tape = None
        return (None, *found)


class _InPlaceSpeculation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, sequence: Whole, *tensors: Tensor) -> tuple[Tensor, ...]:
        states = [s.detach() for s in call.parts(tensors)[1]]
        last = sequence.forward(states, call.cut, call.levels, call.report)
        ctx.call, ctx.inputs = call, len(tensors)
        call.ys = sequence.ys
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *sequence.results)
        return (*sequence.results[: sequence.ys], *last)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        call, n, wanted = ctx.call, ctx.inputs, list(ctx.needs_input_grad[2:])
        if all(g is None for g in gradients):
            return (None,) * (2 + n)
        saved = saved_tensors(ctx, range(n, n + call.ys))  # once, as checkpoints ask
        tensors, results = saved[:n], saved[n:]
        if torch.is_grad_enabled():
            return (None, None, *call.differentiable_gradients(tensors, gradients, wanted))
        xs, states, own = call.parts(tensors)
        changed = any(y is None for y in results[: call.ys])
        sequence = call.engine.in_place(xs, states, own, True, None if changed else results)
        assert sequence is not None
        if changed:
            sequence.forward([s.detach() for s in states], call.cut, call.levels, Report())
        if isinstance(sequence, InPlace):  # (elsewhere the host would wait for the device)
            call.report.silent = _is_silent(gradients[: call.ys])
        sequence.begin_backward(list(gradients[: call.ys]), wanted)
        given = [
            torch.zeros_like(s) if g is None else g.contiguous()
            for s, g in zip(states, gradients[call.ys :], strict=True)
        ]
        at_start = sequence.backward(given, call.cut, call.levels, call.report)
        found = sequence.gradients()
        of_xs, of_own = found[: len(xs)], found[len(xs) :]
        of_state = [g if w else None for g, w in zip(at_start, call.parts(wanted)[1], strict=True)]
        return (None, None, *of_xs, *of_state, *of_own)


def _is_silent(grad_ys: Sequence[Tensor | None]) -> bool:
    """Whether gradients (T, ...) are zero but near the end, by a few of the steps."""
    for g in grad_ys:
        if g is not None and bool(g[: len(g) * 7 // 8 : max(1, len(g) // 16)].any()):
            return False
    return True
