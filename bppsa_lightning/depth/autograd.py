"""The gradients of a run of layers: walked layer by layer, or scanned over depth.

n layers, B samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from bppsa_lightning import planner
from bppsa_lightning.depth.layer import DepthLayer
from bppsa_lightning.depth.scan import LayerScan, Step
from bppsa_lightning.ops._autograd import differentiable_gradients
from bppsa_lightning.ops.log import record_scan

Groups = Sequence[Sequence[Tensor]]  # the parameters of each layer


class Stack(Protocol):
    """What a run of layers asks of the chain that it belongs to."""

    cell: str

    def layer(self, position: int, module: nn.Module, input_size: tuple[int, ...]) -> DepthLayer:
        """The adapter of the module at a position."""

    def scan_of(
        self, first: int, run: Sequence[DepthLayer], parameters: Groups, x: Tensor, levels: int
    ) -> LayerScan:
        """The plans of the products of a run that begins at a position, with x."""

    def record_run(self, shape: tuple[int, int, int], x: Tensor, plan: planner.Plan) -> None:
        """Notes a run: (layers, samples, numbers of its largest state), its output, its plan."""


class Run(NamedTuple):
    """Neighbouring layers of a stack, in one call.

    Attributes:
        stack: that they belong to.
        modules: theirs.
        first: the position of the first in the stack.
        counts: of each one's parameters.
        plan: of their backward. Fixed now: the stack may be told otherwise before the backward.
    """

    stack: Stack
    modules: Sequence[nn.Module]
    first: int
    counts: Sequence[int]
    plan: planner.Plan


class RunFunction(torch.autograd.Function):
    """A run of layers: forward layer by layer, backward by the run's plan."""

    @staticmethod
    def forward(ctx: Any, run: Run, x: Tensor, *parameters: Tensor) -> Tensor:  # type: ignore[override]
        layers, states, extras = [], [x], []
        groups = _groups(parameters, run.counts)
        for k, (module, own) in enumerate(zip(run.modules, groups, strict=True)):
            layer = run.stack.layer(run.first + k, module, tuple(x.shape[1:]))
            x, extra = layer.forward(x, own)
            layer.output_size = tuple(x.shape[1:])
            layers.append(layer)
            states.append(x)
            extras.append(extra)
        ctx.run, ctx.layers, ctx.output_size = run, layers, x.shape
        ctx.save_for_backward(*states[:-1], *extras, *parameters)
        ctx.shape = (len(layers), x.shape[0], max(math.prod(s.shape[1:]) for s in states))
        run.stack.record_run(ctx.shape, x, run.plan)
        return x.view_as(x) if x is states[0] else x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        forward = _Forward.of(ctx)
        needs_x, *needs = needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # for a gradient of the gradient
            return (None, *_differentiable(forward, needed, grad))
        if ctx.run.plan.algorithm == "blelloch":
            grads = _scanned(ctx, forward, grad, needs_x)
        else:
            grads = _walked(forward, grad, needs_x)
        record_scan(ctx.run.stack.cell, ctx.shape, ctx.run.plan)
        of_parameters: list[Tensor | None] = []
        wanted = iter(needs)
        for layer, x, own, g in zip(
            ctx.layers, forward.states, forward.groups, grads[1:], strict=True
        ):
            of_parameters += layer.parameter_grads(g, x, own, [next(wanted) for _ in own])
        return (None, grads[0] if needs_x else None, *of_parameters)


class _Forward(NamedTuple):
    """What a forward kept, layer by layer: adapters, inputs, what else they need, parameters."""

    layers: Sequence[DepthLayer]
    states: Sequence[Tensor]
    extras: Sequence[Any]
    groups: Groups

    @staticmethod
    def of(ctx: Any) -> _Forward:
        n, saved = len(ctx.layers), ctx.saved_tensors
        groups = _groups(saved[2 * n :], ctx.run.counts)
        return _Forward(ctx.layers, saved[:n], saved[n : 2 * n], groups)


def _groups(parameters: Sequence[Tensor], counts: Sequence[int]) -> list[Sequence[Tensor]]:
    """The parameters of each layer."""
    ends = [sum(counts[: k + 1]) for k in range(len(counts))]
    return [parameters[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _walked(forward: _Forward, grad: Tensor, needs_x: bool) -> list[Tensor]:
    """The gradient at every state, layer by layer."""
    layers, states, extras, groups = forward
    grads = [grad]
    for k in reversed(range(len(layers))):
        if k == 0 and not needs_x:
            grads.append(states[0])  # not asked for
        else:
            grads.append(layers[k].vjp(grads[-1], states[k], extras[k], groups[k]))
    return grads[::-1]


def _scanned(ctx: Any, forward: _Forward, grad: Tensor, needs_x: bool) -> list[Tensor]:
    """The gradient at every state that somebody asks for, by up-sweep and down-sweep.

    Where the run's input needs none, the chain begins behind the first layer: its Jacobian would
    go into products, often the largest of all.
    """
    run, first = ctx.run, 0 if needs_x else 1
    layers, states, extras, groups = forward
    scan = run.stack.scan_of(
        run.first + first, layers[first:], groups[first:], states[first], run.plan.levels
    )
    sizes = [*(s.shape for s in states), ctx.output_size]

    def step(k: int) -> Step:
        layer, of_call = layers[k], (states[k], extras[k], groups[k])
        values = cache(lambda: layer.values(*of_call))
        return Step(lambda g: layer.apply(g, *of_call, values), values)

    steps = [step(k) for k in range(first, len(layers))]
    grads = [None] * len(steps) + [grad.reshape(grad.shape[0], -1).t()]
    # Of a layer without parameters, nobody asks for the output's gradient.
    wanted = {k + 1 - first for k, own in enumerate(groups) if own} | {0}
    known = [
        x if g is None else g.t().reshape(size)
        for g, size, x in zip(
            scan.run(steps, grads, wanted), sizes[first:], [*states[first:], grad], strict=True
        )
    ]
    return [*states[:first], *known]  # in front: what is not asked for


def _differentiable(
    forward: _Forward, needed: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of x and the parameters by PyTorch's own path, with a graph behind them."""
    x = y = forward.states[0]
    for layer, extra, own in zip(forward.layers, forward.extras, forward.groups, strict=True):
        y = layer.again(y, extra, own)
    inputs = (x, *(parameter for own in forward.groups for parameter in own))
    return differentiable_gradients([y], inputs, [grad], needed)
