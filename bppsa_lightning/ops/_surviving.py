"""Weights and their surviving values: each the gradient of the other."""

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.ops._autograd import register_formula
from bppsa_lightning.ops._checks import check_on_cpu, check_shape, check_tensor
from bppsa_lightning.ops.sparse_pattern import SparsePattern


def surviving(weight: Tensor, pattern: SparsePattern) -> Tensor:
    """The surviving values of a weight.

    Args:
        weight: of ``pattern.shape``, or (O, C) of a linear layer's; float32 or float64, on the CPU.

    Returns:
        (nnz,), in the order of ``pattern.index``, of the weight's dtype; differentiable.

    Raises:
        TypeError, ValueError, RuntimeError: another dtype, shape or device.
    """
    shapes: list[tuple[int, ...]] = [pattern.shape]
    if pattern.shape[2:] == (1, 1):
        shapes.append(pattern.shape[:2])
    check_tensor("weight", weight)
    check_shape("weight", weight, *shapes)
    check_on_cpu("weight", weight)
    return surviving_of(weight, pattern)


def surviving_of(weight: Tensor, pattern: SparsePattern) -> Tensor:
    """`surviving` for a caller who has checked the arguments."""
    flat, index = weight.contiguous().view(-1), pattern.index
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and weight.requires_grad):
        return torch.ops.bppsa.take_surviving(flat, index)
    return _Take.apply(flat, index)


def _take_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weight, index = inputs
    ctx.size = weight.shape[0]
    ctx.save_for_backward(index)


def _take_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return torch.ops.bppsa.put_surviving(grad.contiguous(), *ctx.saved_tensors, ctx.size), None


def _put_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _put_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.bppsa.take_surviving(grad.contiguous(), *ctx.saved_tensors), None, None


_Take = register_formula("take_surviving", _take_setup, _take_backward)
register_formula("put_surviving", _put_setup, _put_backward)


@torch.library.register_fake("bppsa::take_surviving")
def _(weight: Tensor, index: Tensor) -> Tensor:
    return weight.new_empty(index.shape)


@torch.library.register_fake("bppsa::put_surviving")
def _(values: Tensor, index: Tensor, size: int) -> Tensor:
    return values.new_empty((size,))
