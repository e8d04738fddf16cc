"""A run of layers over ranks, as one differentiable function: each rank's part of it.

n layers of this rank, B samples, N numbers a sample.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bppsa_lightning.depth.autograd import Run, calls_of, forward, gradients_of, steps_of, walked
from bppsa_lightning.depth.composition import Limits
from bppsa_lightning.depth.divided import DividedStack
from bppsa_lightning.depth.scan import LayerScan
from bppsa_lightning.ops._autograd import once_differentiable
from bppsa_lightning.ops.log import record_scan


class RankRun(NamedTuple):
    """This rank's layers of a run, in one call.

    Attributes:
        run: its own layers. divided: the ranks. place: where the whole run begins in the stack.
        wants_x: whether the run's input needs a gradient. random: whether all ranks hold all
            layers, and one of them draws random numbers.
    """

    run: Run
    divided: DividedStack
    place: int
    wants_x: bool
    random: bool


class RankRunFunction(torch.autograd.Function):
    """Inputs: the run's input, the parameters of this rank's layers, and others, which get none."""

    @staticmethod
    def forward(ctx: Any, call: RankRun, x: Tensor, *parameters: Tensor) -> Tensor:  # type: ignore[override]
        run, divided = call.run, call.divided
        found: list[Any] = []

        def layers(entering: Tensor) -> Tensor:
            found[:] = forward(run, entering, parameters)
            return found[0]

        entering, output = divided.forward(x, layers, call.random)
        y, ctx.layers, saved, largest = found
        ctx.call, ctx.of_x, ctx.leaving = call, x.shape, y.shape
        ctx.save_for_backward(entering, *saved)
        largest = max(largest, math.prod(y.shape[1:]))
        ctx.shape = (len(ctx.layers), entering.shape[0], largest)
        run.chain.record_run(ctx.shape, x.device, run.plan)
        return output.view_as(output) if output is x else output

    @staticmethod
    @once_differentiable("a stack divided over ranks")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        call, layers = ctx.call, ctx.layers
        run, divided, exchange = call.run, call.divided, call.divided.exchange
        entering, *saved = ctx.saved_tensors
        calls = calls_of(run, saved)
        B = entering.shape[0]
        needs_first = not exchange.is_first or call.wants_x

        def walk(behind: Tensor) -> list[Tensor]:
            return walked(layers, calls, behind.reshape(ctx.leaving), needs_first)

        def scan() -> LayerScan:
            return run.chain.scan_of(run.first, layers, calls, len(layers))  # type: ignore[no-any-return]

        given = grad if exchange.is_last else grad.new_empty(B, 0)
        into, out = math.prod(entering.shape[1:]), math.prod(ctx.leaving[1:])
        given = given.reshape(B, out if exchange.is_last else 0)
        if run.plan.algorithm == "blelloch" and B:
            limits = Limits(run.chain.budget, entering.dtype, B)
            steps = steps_of(layers, calls)
            grads = divided.scanned(call.place, given, into, out, scan, steps, walk, limits)
        else:
            grads = divided.relayed(given, out, walk)
        record_scan(run.chain.cell, ctx.shape, run.plan)
        needs_x, *needs = ctx.needs_input_grad[1:]
        of_parameters = gradients_of(layers, calls, grads[1:], needs)
        of_x = None
        if needs_x and not divided.sharded:
            of_x = exchange.of_rank(0, grads[0] if exchange.is_first else grad.new_empty(ctx.of_x))
        elif needs_x and exchange.is_first:
            of_x = grads[0]
        others = len(ctx.needs_input_grad) - 2 - len(of_parameters)
        return (None, of_x, *of_parameters, *[None] * others)
