"""Diagonal transposed Jacobians: elementwise functions, and what only scales or reshapes."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa_lightning.jacobians.pattern import Pattern
from bppsa_lightning.ops import jacobians as operators
from bppsa_lightning.ops._checks import check_bool, check_dtype, check_values, wrong_shape

_KERNELS = ("relu", "leaky_relu", "tanh", "sigmoid", "silu")
_GELU = ("gelu", "gelu_tanh")


def elementwise_values(function: str, x: Tensor, slope: float = 0.01) -> Tensor:
    """φ'(x), number by number: the values of a diagonal Jacobian.

    Args:
        function: "relu", "leaky_relu", "tanh", "sigmoid", "silu", "gelu", or "gelu_tanh".
        x: any shape, float32 or float64, on the CPU or a CUDA device.
        slope: of leaky_relu's negative side.

    Returns:
        x's shape and dtype. Where φ has no derivative, what PyTorch takes (relu'(0) = 0).

    Raises:
        TypeError, ValueError: `x` or `function` is none of these.
    """
    x = check_values("x", x)
    if function in _KERNELS:
        return operators.elementwise_values(x, function, slope)
    if function in _GELU:
        approximate = "tanh" if function == "gelu_tanh" else "none"
        return torch.ops.aten.gelu_backward(torch.ones_like(x), x, approximate=approximate)
    raise ValueError(f"function: found {function!r}, wanted one of {(*_KERNELS, *_GELU)}")


def _diagonal(values: Tensor) -> Tensor:
    return Pattern.diagonal(values.numel()).csr(values.reshape(-1))


def relu(x: Tensor) -> Tensor:
    """Transposed Jacobian of relu at x: diagonal, with the guaranteed pattern (zeros are stored).

    Args:
        x: any shape, float32 or float64, on the CPU or a CUDA device; all its numbers make one
            state.

    Returns:
        torch.sparse_csr (n, n), n = x.numel(), int32 indices, of x's dtype, without gradient.

    Raises:
        TypeError, ValueError: `x` is none of these.
    """
    return _diagonal(elementwise_values("relu", x))


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Transposed Jacobian of leaky_relu at x: see `relu`."""
    return _diagonal(elementwise_values("leaky_relu", x, negative_slope))


def tanh(x: Tensor) -> Tensor:
    """Transposed Jacobian of tanh at x: see `relu`."""
    return _diagonal(elementwise_values("tanh", x))


def sigmoid(x: Tensor) -> Tensor:
    """Transposed Jacobian of sigmoid at x: see `relu`."""
    return _diagonal(elementwise_values("sigmoid", x))


def silu(x: Tensor) -> Tensor:
    """Transposed Jacobian of silu at x: see `relu`."""
    return _diagonal(elementwise_values("silu", x))


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Transposed Jacobian of gelu at x: see `relu`.

    Raises:
        ValueError: `approximate` is neither "none" nor "tanh".
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate: found {approximate!r}, wanted 'none' or 'tanh'")
    return _diagonal(elementwise_values("gelu" if approximate == "none" else "gelu_tanh", x))


def flatten(
    input_size: Sequence[int], dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Tensor:
    """Transposed Jacobian of flatten, or of any reshape: the identity.

    Args:
        input_size: the sizes of the input, all of them.
        dtype: float32 or float64; torch's default if None.
        device: of the result.
    """
    return _diagonal(torch.ones(math.prod(input_size), dtype=check_dtype(dtype), device=device))


def dropout(mask: Tensor, p: float = 0.5, dtype: torch.dtype | None = None) -> Tensor:
    """Transposed Jacobian of dropout for the mask that was drawn.

    Args:
        mask: any shape, bool, on the CPU or a CUDA device; True where the input is kept.
        p: the probability of being dropped, 0 to 1: kept numbers are scaled by 1 / (1 - p).
        dtype: float32 or float64; torch's default if None.

    Raises:
        TypeError: `mask` is no bool tensor there.
        ValueError: `p` is out of range, or 1 though numbers were kept.
    """
    check_bool("mask", mask)
    if not 0 <= p <= 1 or (p == 1 and bool(mask.any())):
        raise ValueError(f"p: found {p}, wanted 0 to 1, and below 1 where numbers were kept")
    return _diagonal(mask.to(check_dtype(dtype)) / (1 - p if p < 1 else 1))


def batch_norm(
    input_size: Sequence[int], running_var: Tensor, weight: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Transposed Jacobian of batch normalisation in eval mode: weight / sqrt(running_var + eps).

    (In training mode the statistics couple the samples of a batch.)

    Args:
        input_size: (C,) or (C, L, …) of one sample.
        running_var: (C,), float32 or float64, on the CPU or a CUDA device.
        weight: (C,) of the same dtype, or None for ones.

    Raises:
        TypeError, ValueError: shapes, dtypes or devices do not fit.
    """
    variance = check_values("running_var", running_var)
    size = tuple(int(n) for n in input_size)
    if not size or variance.shape != (size[0],):
        raise wrong_shape("running_var", variance, f"(C,) for an input of (C, …) = {size}")
    scale = batch_norm_scale(variance, weight, eps)
    return _diagonal(scale.repeat_interleave(math.prod(size[1:])))


def batch_norm_scale(variance: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """(C,): what batch normalisation in eval mode multiplies each channel by."""
    scale = torch.rsqrt(variance + eps)
    if weight is None:
        return scale
    weight = check_values("weight", weight)
    if (weight.shape, weight.dtype, weight.device) != (scale.shape, scale.dtype, scale.device):
        raise ValueError(
            f"weight: found shape {tuple(weight.shape)} of {weight.dtype} on {weight.device}, "
            f"wanted running_var's {tuple(scale.shape)} of {scale.dtype} on {scale.device}"
        )
    return scale * weight
