"""The gradients of a sparse layer, and of the ReLU and pooling in the same pass.

Letters and layout as in ops/sparse.py.
"""

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import reference
from bppsa_lightning.ops._autograd import (
    bit_mask,
    differentiable_gradients,
    only,
    register_formula,
)
from bppsa_lightning.ops._checks import register_fake
from bppsa_lightning.ops.sparse_pattern import output_size


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, values, bias, *ctx.pattern, relu, pool = inputs
    kept = (output[0] if relu and not pool else None, output[1] if pool else None)
    ctx.save_for_backward(x, values, *kept)
    ctx.set_materialize_grads(False)  # that of the places


def _backward(ctx: Any, grad: Tensor | None, _grad_of_places: Any = None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 15
    x, values, output, places = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():
        gradients = _differentiable_backward(ctx, grad)
    else:
        if output is not None or places is not None:
            grad = grad.contiguous()
        grad = grad.permute(3, 0, 1, 2)
        *pattern, _groups = ctx.pattern
        grad_x, grad_values, grad_bias = _run_backward(
            grad, output, places, x, values, *pattern, bit_mask(wanted)
        )
        grad_x = grad_x.permute(3, 0, 1, 2) if wanted[0] else None
        gradients = only(wanted, (grad_x, grad_values, grad_bias))
    return (*gradients, *(None,) * 12)


def _differentiable_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The same gradients as functions of everything they depend on, by the dense layer's."""
    x, values, output, places = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:3]
    rows, entries, _, _, _, *geometry, groups = ctx.pattern
    size = output_size(x.shape[2:], *geometry)
    grad = reference.before_relu_and_pool(grad, output, places, size).permute(3, 0, 1, 2)

    def formula(x: Tensor, values: Tensor) -> list[Tensor]:
        return [reference.sparse_conv2d(x, values, rows, entries, geometry, groups)]

    grads = differentiable_gradients(formula, (x, values), [grad], wanted[:2])
    return (*grads, grad.sum((0, 2, 3)) if wanted[2] else None)


_run_backward = torch.ops.bppsa.sparse_conv2d_backward.default
SparseFunction = register_formula("sparse_conv2d", _setup, _backward)


@register_fake("sparse_conv2d")
def _(
    x: Tensor, values: Tensor, bias: Tensor | None, rows: Tensor, *others: Any
) -> tuple[Tensor, Tensor]:
    _, _, _, _, *geometry, _groups = others[:9]
    _relu, pool = (*others[9:], False, False)[:2]  # torch leaves out what is False
    size = output_size(x.shape[2:], *geometry)
    result = [n // 2 for n in size] if pool else size
    output = x.new_empty((rows.shape[0] - 1, *result, x.shape[0]))
    return output, x.new_empty(output.shape if pool else (0,), dtype=torch.uint8)


@torch.library.register_fake("bppsa::sparse_conv2d_backward")
def _(
    grad: Tensor, output: Tensor | None, places: Tensor | None, x: Tensor, values: Tensor,
    rows: Tensor, *others: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    B, C, H, W = x.shape
    wanted, shapes = others[-1], ((C, H, W, B), values.shape, (rows.shape[0] - 1,))
    return tuple(x.new_empty(s if wanted >> i & 1 else (0,)) for i, s in enumerate(shapes))
