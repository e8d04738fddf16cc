"""linear: the input's part of a layer's sums, of all steps at once.

T steps, B batch, I input, O numbers of a result.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bppsa_lightning import _library
from bppsa_lightning._context import is_transformed, recorded
from bppsa_lightning.ops._autograd import (
    bit_mask,
    differentiable_gradients,
    only,
    register_formula,
)
from bppsa_lightning.ops._checks import FLOATS, register_fake

# Multiply-adds from which on a kernel of ours pays for its call; numbers of a weight up to which it
# was measured to be the faster one.
_LEAST, _MOST = 1 << 20, 1 << 20
# Likewise of one, and of its inputs, up to which it may join another operator.
_MOST_JOINED, _MOST_INPUTS_JOINED = 1 << 18, 512


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x Wᵀ + b, as `torch.nn.functional.linear`.

    A kernel of ours computes it on an x86 CPU with AVX2 or AVX-512, in float32 and float64, where
    the work pays for the call and the weight has at most 2**20 numbers. PyTorch computes all else,
    and what torch.jit.trace or torch.onnx.export records. On AMD, where PyTorch's library does not
    use AVX-512, ours is about twice as fast (experiments/records/linear_cpu.json).

    Args:
        x: (..., I). weight: (O, I). bias: (O,) or None.

    Returns:
        (..., O). Differentiable any number of times, and under every transform.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit, in PyTorch's words.
    """
    if not _is_ours(x, weight, bias):
        return functional.linear(x, weight, bias)
    rows = x.unsqueeze(1) if x.dim() == 2 else x
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    run = _forward if torch.compiler.is_compiling() else _Linear.apply
    output: Tensor = run(rows, weight.contiguous(), None if bias is None else bias.contiguous())
    return output.squeeze(1) if x.dim() == 2 else output


def joins(x: Tensor, weight: Tensor) -> bool:
    """Whether an operator that takes an input's sums had better make them as well.

    That spares their way through memory; but it multiplies few rows at a time, for which the
    weight has to stay in a core's cache.
    """
    if x.device.type not in ("cpu", "meta") or not _has_kernel():
        return False
    return 0 < weight.numel() <= _MOST_JOINED and weight.shape[1] <= _MOST_INPUTS_JOINED


def _is_ours(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor):  # of which PyTorch will say so
        return False
    if x.device.type != "cpu" or x.dtype not in FLOATS or x.dim() not in (2, 3):
        return False
    fits = weight.dim() == 2 and x.shape[-1] == weight.shape[1]
    fits = fits and weight.dtype == x.dtype and weight.device == x.device
    if bias is not None:
        fits = fits and bias.shape == weight.shape[:1] and bias.dtype == x.dtype
        fits = fits and bias.device == x.device
    if not fits or not 0 < weight.numel() <= _MOST or recorded() is not None:
        return False
    if torch.is_autocast_enabled("cpu") or not _has_kernel():
        return False
    if torch.compiler.is_compiling():  # a graph is for any number of rows
        return True
    return x.numel() * weight.shape[0] >= _LEAST and not is_transformed()


_kernels = cache(_library.cpu_kernels)


@torch.compiler.assume_constant_result
def _has_kernel() -> bool:
    """Whether ours was measured on such a machine."""
    return _kernels() in ("x86_64_v3", "x86_64_v4")


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight, bias)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():

        def formula(*inputs: Any) -> list[Tensor]:
            return [functional.linear(*inputs)]

        return differentiable_gradients(formula, (x, weight, bias), [grad], wanted)
    return only(wanted, _run_backward(grad.contiguous(), x, weight, bit_mask(tuple(wanted))))


_forward = torch.ops.bppsa.linear.default
_run_backward = torch.ops.bppsa.linear_backward.default
_Linear = register_formula("linear", _setup, _backward)


@register_fake("linear")
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:2], weight.shape[0])


@torch.library.register_fake("bppsa::linear_backward")
def _(grad: Tensor, x: Tensor, weight: Tensor, wanted: int) -> tuple[Tensor, Tensor, Tensor]:
    O, I = weight.shape  # noqa: E741
    sizes = x.shape if wanted & 1 else (0,), (O if wanted & 2 else 0, I), (O if wanted & 4 else 0,)
    grad_x, grad_weight, grad_bias = (x.new_empty(size) for size in sizes)
    return grad_x, grad_weight, grad_bias
