"""The gradients of a run of layers: walked layer by layer, or scanned over depth.

n layers, B samples.
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bppsa_lightning import planner
from bppsa_lightning.depth.layer import DepthLayer, LayerCall
from bppsa_lightning.depth.scan import Step
from bppsa_lightning.ops._autograd import differentiable_gradients
from bppsa_lightning.ops.log import record_scan


class Run(NamedTuple):
    """Neighbouring layers of a stack, in one call.

    Attributes:
        chain: the `FeedforwardChain` that they belong to.
        modules: theirs.
        first: the position of the first in the stack.
        counts: of each one's parameters.
        plan: of their backward. Fixed now: the chain may be told otherwise before the backward.
    """

    chain: Any
    modules: Sequence[nn.Module]
    first: int
    counts: Sequence[int]
    plan: planner.Plan


class RunFunction(torch.autograd.Function):
    """A run of layers: forward layer by layer, backward by the run's plan."""

    @staticmethod
    def forward(ctx: Any, run: Run, x: Tensor, *parameters: Tensor) -> Tensor:  # type: ignore[override]
        y, layers, saved, largest = forward(run, x, parameters)
        ctx.run, ctx.layers = run, layers
        ctx.save_for_backward(*saved)
        ctx.shape = (len(layers), x.shape[0], largest)
        run.chain.record_run(ctx.shape, x.device, run.plan)
        return y.view_as(y) if y is x else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        run, layers = ctx.run, ctx.layers
        calls = calls_of(run, ctx.saved_tensors)
        needs_x, *needs = needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # for a gradient of the gradient
            return (None, *_differentiable(layers, calls, needed, grad))
        if run.plan.algorithm == "blelloch":
            grads = _scanned(run, layers, calls, grad, needs_x)
        else:
            grads = walked(layers, calls, grad, needs_x)
        record_scan(run.chain.cell, ctx.shape, run.plan)
        of_parameters = gradients_of(layers, calls, grads[1:], needs)
        return (None, grads[0] if needs_x else None, *of_parameters)


def forward(
    run: Run, x: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, list[DepthLayer], list[Any], int]:
    """The output of a run, its layers, what to save of each, and the numbers of the largest state.

    Args:
        parameters: of its layers in turn; more are not read.
    """
    flat, layers, saved, largest = iter(parameters), [], [], 0
    for k, (module, count) in enumerate(zip(run.modules, run.counts, strict=True)):
        layer = run.chain.layer(run.first + k, module, tuple(x.shape[1:]))
        own = list(islice(flat, count))
        output, kept = layer.forward(x, own)
        layers.append(layer)
        # As x.data, it may be changed in place by whoever was given it as a run's output.
        saved += [x if layer.reads_input else x.data, kept, *own]
        x, layer.output_size = output, tuple(output.shape[1:])
        largest = max(largest, *map(math.prod, (layer.input_size, layer.output_size)))
    return x, layers, saved, largest


def calls_of(run: Run, saved: Sequence[Any]) -> list[LayerCall]:
    """What each layer's forward has left, from what was saved."""
    each = iter(saved)
    return [LayerCall(next(each), next(each), [*islice(each, n)]) for n in run.counts]


def gradients_of(
    layers: Sequence[DepthLayer], calls: Sequence[LayerCall], grads: Sequence[Tensor],
    needs: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """Of all parameters in turn, from the gradients of the layers' outputs."""
    found: list[Tensor | None] = []
    wanted = iter(needs)
    for layer, call, g in zip(layers, calls, grads, strict=True):
        found += layer.parameter_grads(g, call, list(islice(wanted, len(call.parameters))))
    return found


def walked(
    layers: Sequence[DepthLayer], calls: Sequence[LayerCall], grad: Tensor, needs_x: bool
) -> list[Tensor]:
    """The gradient at every state, layer by layer."""
    grads = [grad]
    for k in reversed(range(len(calls))):
        if k == 0 and not needs_x:
            grads.append(calls[0].x)  # not asked for
        else:
            grads.append(layers[k].vjp(grads[-1], calls[k]))
    return grads[::-1]


def steps_of(layers: Sequence[DepthLayer], calls: Sequence[LayerCall]) -> list[Step]:
    """Of a scan over these layers."""

    def step(layer: DepthLayer, call: LayerCall) -> Step:
        values = cache(lambda: layer.values(call))
        return Step(lambda g: layer.apply(g, call, values), values)

    return [step(layer, call) for layer, call in zip(layers, calls, strict=True)]


def _scanned(
    run: Run, layers: Sequence[DepthLayer], calls: Sequence[LayerCall], grad: Tensor, needs_x: bool
) -> list[Tensor]:
    """The gradient at every state that somebody asks for, by up-sweep and down-sweep.

    Where the run's input needs none, the chain begins behind the first layer: its Jacobian would
    go into products, often the largest of all.
    """
    first = 0 if needs_x else 1
    states = [*(call.x for call in calls), grad]
    scan = run.chain.scan_of(run.first + first, layers[first:], calls[first:], run.plan.levels)
    steps = steps_of(layers[first:], calls[first:])
    grads = [None] * len(steps) + [grad.reshape(grad.shape[0], -1).t()]
    # Of a layer without parameters, nobody asks for the output's gradient.
    wanted = {k + 1 - first for k, call in enumerate(calls) if call.parameters} | {0}
    known = [
        x if g is None else g.t().reshape(x.shape)
        for g, x in zip(scan.run(steps, grads, wanted), states[first:], strict=True)
    ]
    return [*states[:first], *known]  # in front: what is not asked for


def _differentiable(
    layers: Sequence[DepthLayer], calls: Sequence[LayerCall], needed: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of x and the parameters by PyTorch's own path, with a graph behind them."""

    def formula(y: Tensor, *parameters: Tensor) -> list[Tensor]:
        each = iter(parameters)
        for layer, call in zip(layers, calls, strict=True):
            own = list(islice(each, len(call.parameters)))
            y = layer.again(call._replace(x=y, parameters=own))
        return [y]

    inputs = (calls[0].x, *(parameter for call in calls for parameter in call.parameters))
    return differentiable_gradients(formula, inputs, [grad], needed)
