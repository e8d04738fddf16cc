"""Layers whose gradient tasks can be done by a process that has not run their forward.

A linear layer's and a convolution's dX needs the gradient and the weights, dW the gradient and the
input: no part of the forward's graph. All other layers keep their tasks where their forward ran.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_movable(layer: nn.Module) -> bool:
    """Whether a layer is a plain `nn.Linear` or convolution, without hooks or parametrizations."""
    if type(layer) not in (nn.Linear, *CONVOLUTIONS) or layer._forward_pre_hooks:
        return False
    if layer._forward_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        return False
    if any(p._backward_hooks for p in layer.parameters()):
        return False
    named = isinstance(getattr(layer, "padding", 0), str)
    if named or getattr(layer, "padding_mode", "zeros") != "zeros":
        return False
    return set(layer._parameters) == {"weight", "bias"} and not layer._buffers


def _convolution(
    layer: Any, g: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]
) -> Sequence[Tensor]:
    sizes = None if layer.bias is None else [layer.out_channels]
    zeros = [0] * len(layer.padding)
    return torch.ops.aten.convolution_backward(
        g, x, weight, sizes, layer.stride, layer.padding, layer.dilation, False, zeros,
        layer.groups, list(wanted),
    )  # fmt: skip


def input_gradient(layer: nn.Module, g: Tensor, weight: Tensor, size: Sequence[int]) -> Tensor:
    """dX of a movable layer.

    Args:
        layer: it.
        g: the gradient of its output, (B, …).
        weight: its weight, in the version that is asked for.
        size: of its input, (B, …).

    Returns:
        The gradient of its input.
    """
    if isinstance(layer, nn.Linear):
        return g @ weight
    x = g.new_empty(1).expand(tuple(size))  # only its size is read
    return _convolution(layer, g, x, weight, (True, False, False))[0]


def weight_gradient(layer: nn.Module, x: Tensor, g: Tensor) -> list[Tensor]:
    """dW, and the bias' if it has one, of a movable layer.

    Args:
        layer: it; of its weight only the size is read.
        x: its input, (B, …).
        g: the gradient of its output, (B, …).
    """
    has_bias = layer.bias is not None
    if isinstance(layer, nn.Linear):
        rows = g.reshape(-1, g.shape[-1])
        dw = rows.T @ x.reshape(-1, x.shape[-1])
        return [dw, rows.sum(0)] if has_bias else [dw]
    assert isinstance(layer, CONVOLUTIONS)
    grads = _convolution(layer, g, x, layer.weight, (False, True, has_bias))
    return list(grads[1:] if has_bias else grads[1:2])
