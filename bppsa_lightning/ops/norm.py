"""batch_norm: by the statistics of the batch, and a ReLU in the same pass.

PyTorch's own sums up one number after the other. C channels, n numbers of each: of all samples and
pixels, one after another in memory, as in the sparse layers' layout.
"""

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.ops._autograd import differentiable_gradients, only
from bppsa_lightning.ops._checks import (
    check_like,
    check_shape,
    check_tensor,
    register_fake,
    wrong_shape,
)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float = 1e-5, relu: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation by the statistics of x.

    Args:
        x: (C, n), contiguous, float32 or float64, on the CPU.
        weight, bias: (C,) of x's dtype, or None for ones and zeros.
        eps: added to the variance.
        relu: whether a ReLU follows.

    Returns:
        The result (C, n); mean (C,) and variance (C,) over n, without gradient.

    Raises:
        TypeError, ValueError: an argument is none of these.
    """
    check_tensor("x", x)
    if x.device.type != "cpu":
        raise TypeError(f"x: found on {x.device}, wanted on the CPU")
    if x.dim() != 2 or not x.is_contiguous() or not x.shape[1]:
        raise wrong_shape("x", x, "contiguous (C, n), n > 0")
    for name, of_channels in (("weight", weight), ("bias", bias)):
        if of_channels is not None:
            check_tensor(name, of_channels)
            check_shape(name, of_channels, (x.shape[0],))
            check_like(name, of_channels, "x", x)
    return torch.ops.bppsa.batch_norm(x, weight, bias, eps, relu)


def _plain(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, relu: bool) -> Tensor:
    """The same in PyTorch, for gradients of gradients."""
    d = x - x.mean(1, keepdim=True)
    y = d * torch.rsqrt(d.square().mean(1, keepdim=True) + eps)
    y = y if weight is None else y * weight.unsqueeze(1)
    y = y if bias is None else y + bias.unsqueeze(1)
    return y.relu() if relu else y


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, ctx.eps, ctx.relu = inputs
    y, mean, var = output
    ctx.mark_non_differentiable(mean, var)
    # Without a ReLU nobody asks for y, which may then be changed in place.
    ctx.save_for_backward(x, weight, bias, y if ctx.relu else x, mean, var)


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, weight, bias, y, mean, var = ctx.saved_tensors
    needs = ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():

        def formula(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> list[Tensor]:
            return [_plain(x, weight, bias, ctx.eps, ctx.relu)]

        found = differentiable_gradients(formula, (x, weight, bias), [grad], needs)
        return (*found, None, None)
    grads = torch.ops.bppsa.batch_norm_backward(
        grad.contiguous(), x, y, weight, mean, var, ctx.eps, ctx.relu
    )
    return (*only(needs, grads), None, None)


torch.library.register_autograd("bppsa::batch_norm", _backward, setup_context=_setup)


@register_fake("batch_norm")
def _(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[0]), x.new_empty(x.shape[0])


@torch.library.register_fake("bppsa::batch_norm_backward")
def _(grad: Tensor, x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
