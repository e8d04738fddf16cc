"""A recurrent layer whose backward gives the gradients of its weights sample by sample.

Letters as in ops/recurrent.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import planner
from bppsa_lightning.ops._autograd import bit_mask, once_differentiable, only
from bppsa_lightning.ops._member_gradients import member_gradients
from bppsa_lightning.ops._recurrent_autograd import (
    Operands,
    laid_out,
    request_of,
    run_forward,
    run_planned_backward,
)

# Given the gradients of w_ih, w_hh, b_ih, b_hh and w_hr, each (B, *shape); None where not wanted.
Keep = Callable[[tuple[Tensor | None, ...]], None]


def run_sampled_layer(
    cell: str, operands: Operands, reverse: bool, algorithm: str, keep: Keep
) -> tuple[Tensor, Tensor, Tensor]:
    """`ops.run_layer`, which also hands out the gradients of each sample.

    Args:
        keep: called in each backward, with those of the weights that require a gradient. What it
            is given is its own. Their sums over the samples are the layer's gradients, as ever.

    Returns:
        output, h_n, c_n (empty unless an LSTM's). Differentiable once.
    """
    contiguous = laid_out(operands)[0]
    found: tuple[Tensor, ...] = _Sampled.apply(cell, reverse, algorithm, keep, *contiguous)
    return found[0], found[1], found[2]


class _Sampled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cell: str, reverse: bool, algorithm: str, keep: Keep, *tensors: Any
    ) -> tuple[Tensor, ...]:
        output, h_n, c_n, kept = run_forward(
            cell, *tensors, reverse, int(planner.Saved.GATES), algorithm
        )
        ctx.how = cell, reverse, algorithm, keep
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output, kept)
        return output, h_n, c_n

    @staticmethod
    @once_differentiable("a layer that gives the gradients of each sample")
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Any, ...]:
        cell, reverse, algorithm, keep = ctx.how
        *tensors, output, kept = ctx.saved_tensors
        operands, wanted = Operands(*tensors), ctx.needs_input_grad[4:]
        B = operands.x.shape[1]

        def run(others: Operands, asked: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
            plan, bits = planner.plan(request_of(cell, others, algorithm)), bit_mask(tuple(asked))
            found = run_planned_backward(cell, incoming, output, kept, others, reverse, plan, bits)
            return only(asked, found)

        found = member_gradients(run, cell, reverse, wanted, incoming, output, operands, B)
        sums = [None if t is None else t.sum(0) for t in found[3:]]
        keep(found[3:])
        return (None, None, None, None, *found[:3], *sums)
