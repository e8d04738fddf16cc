"""The walk of a sequence in windows, verified, as one differentiable function."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bppsa_lightning.windows.backward import backward
from bppsa_lightning.windows.cut import Cut, Leaves
from bppsa_lightning.windows.engine import Engine
from bppsa_lightning.windows.forward import Report, forward
from bppsa_lightning.windows.levels import Levels

__all__ = ["Report", "in_words", "speculate"]


def speculate(
    engine: Engine, xs: Leaves, state: Leaves, cut: Cut, levels: Levels, report: Report
) -> tuple[list[Tensor], list[Tensor]]:
    """What ``engine(xs, state)`` returns, by the windows of `cut`.

    Args:
        xs: (T, B, ...) each. state: (B, ...) each; new windows begin at zeros of its shapes.
        levels: what counts as met.
        report: what happened is written there: in the forward, and in the backward.

    Returns:
        ys, (T, B, ...) each, and the last state. Differentiable once.
    """
    inputs = (*xs, *state, *engine.tensors)
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in inputs):
        tape = forward(engine, xs, state, cut, levels, report, keep=False)
        return list(tape.ys), list(tape.last)
    call = _Call(engine, len(xs), len(state), cut, levels, report)
    outputs = _Speculation.apply(call, *inputs)
    return list(outputs[: call.ys]), list(outputs[call.ys :])


def in_words(cut: Cut, report: Report | None) -> str:
    """What became of a call, for people."""
    text = f"{cut.windows} windows of {cut.span} steps, warmed up for {cut.warm}"
    if report is None:
        return text
    if report.walked_from is not None:
        text += f"; from window {report.walked_from} on they did not meet, and were walked as one"
    elif report.missed:
        text += f"; {report.missed} did not meet, and were repaired in {_count(report.passes)}"
    else:
        text += "; all met"
    if report.backward_passes > 1:
        text += f"; gradients were handed on in {_count(report.backward_passes)}"
    return text


def _count(passes: int) -> str:
    return f"{passes} pass{'es' * (passes != 1)}"


class _Call:
    """The arguments of one call that are no tensors; `ys`, how many outputs come before states."""

    def __init__(
        self, engine: Engine, xs: int, states: int, cut: Cut, levels: Levels, report: Report
    ) -> None:
        self.engine, self.xs, self.states = engine, xs, states
        self.cut, self.levels, self.report = cut, levels, report
        self.ys = 0

    def parts(self, tensors: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """xs, states and the engine's own, of what was given to `apply`, or of its gradients."""
        a, b = self.xs, self.xs + self.states
        return tensors[:a], tensors[a:b], tensors[b:]


class _Speculation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        xs, states, _ = call.parts(tensors)
        wanted = ctx.needs_input_grad[1:]
        ctx.call = call
        ctx.set_materialize_grads(False)
        with torch.enable_grad():
            engine = call.engine.with_own_tensors()
            tape = forward(
                engine, [x.detach() for x in xs], [s.detach() for s in states], call.cut,
                call.levels, call.report, keep=True, wants_xs=call.parts(wanted)[0],
            )  # fmt: skip
        ctx.tape = tape
        call.ys = len(tape.ys)
        outputs = (*tape.ys, *tape.last)
        tape.ys, tape.last = [], []
        fixed = [t for t in outputs if not t.is_floating_point() and not t.is_complex()]
        ctx.mark_non_differentiable(*fixed)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        call, tape = ctx.call, ctx.tape
        if tape is None:
            raise RuntimeError(
                "Trying to backward through the graph of a recurrence a second time: specify "
                "retain_graph=True in the first backward"
            )
        wanted = call.parts(ctx.needs_input_grad[1:])
        grad_ys, grad_last = gradients[: call.ys], gradients[call.ys :]
        found = backward(tape, list(grad_ys), list(grad_last), wanted, call.report)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.tape = None
        return (None, *found)
