"""sparse_conv2d, sparse_linear: layers with few weights, at the cost of the weights that survive.

B samples, C channels in, O channels out, H and W rows and columns of the image.

Results lie with the samples innermost, strides (1, H·W·B, W·B, B): what the kernels read without a
copy. Elementwise operations of PyTorch keep that layout.
"""

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.ops._checks import (
    check_like,
    check_on_cpu,
    check_shape,
    check_tensor,
    wrong_shape,
)
from bppsa_lightning.ops._sparse_autograd import SparseFunction
from bppsa_lightning.ops._surviving import surviving_of
from bppsa_lightning.ops.sparse_pattern import SparsePattern

_forward = torch.ops.bppsa.sparse_conv2d.default


def sparse_conv2d(
    x: Tensor, weight: Tensor, pattern: SparsePattern, bias: Tensor | None = None
) -> Tensor:
    """`torch.nn.functional.conv2d` with the surviving weights only.

    Args:
        x: (B, C, H, W), any strides, float32 or float64; without a copy where the samples lie
            innermost and nothing is padded.
        weight: of ``pattern.shape``, or (nnz,): the surviving ones, in the order of
            ``pattern.index``. What `weight` holds at other places is not read.
        pattern: made by `SparsePattern.of`, with stride, padding, dilation and groups.
        bias: (O,), or None.

    Returns:
        (B, O, H′, W′), the samples innermost. Differentiable any number of times; the gradient of a
        weight that does not survive is exactly 0. Second derivatives are those of the dense layer.

    Raises:
        TypeError: an argument is not a tensor, or of another dtype.
        ValueError: shapes or devices do not fit.
        RuntimeError: not on the CPU.
    """
    _check(x, weight, pattern, bias)
    return run_sparse_layer(x, weight, pattern, bias)


def sparse_linear(
    x: Tensor, weight: Tensor, pattern: SparsePattern, bias: Tensor | None = None
) -> Tensor:
    """`torch.nn.functional.linear` with the surviving weights only.

    Args:
        x: (..., C), float32 or float64; samples may lie innermost.
        weight: (O, C), or (nnz,) as in `sparse_conv2d`.
        pattern: made by `SparsePattern.of` of an (O, C) mask.
        bias: (O,), or None.

    Returns:
        (..., O); of a two-dimensional x, the samples innermost.

    Raises:
        TypeError, ValueError, RuntimeError: as for `sparse_conv2d`.
    """
    check_tensor("x", x)
    _check_pattern(pattern)
    O, C, *taps = pattern.shape
    if taps != [1, 1] or any(pattern.padding) or pattern.groups != 1:
        raise ValueError(
            f"pattern: found that of a convolution, with a weight of {pattern.shape}, padding "
            f"{pattern.padding} and {pattern.groups} groups; wanted that of an (O, C) mask"
        )
    if x.dim() < 1 or x.shape[-1] != C:
        raise wrong_shape("x", x, f"(..., {C})")
    check_tensor("weight", weight)
    check_shape("weight", weight, (O, C), (pattern.nnz,))
    if weight.dim() == 2:
        weight = weight[:, :, None, None]
    image = x.reshape(-1, x.shape[-1], 1, 1)
    return sparse_conv2d(image, weight, pattern, bias).view(*x.shape[:-1], pattern.shape[0])


def run_sparse_layer(
    x: Tensor,
    weight: Tensor,
    pattern: SparsePattern,
    bias: Tensor | None,
    relu: bool = False,
    pool: bool = False,
) -> Tensor:
    """`sparse_conv2d` for a caller who has checked the arguments.

    Args:
        relu, pool: what follows in the same pass: `torch.relu`, ``max_pool2d(…, 2)``, or both.
            The layer's own output is not in memory then.
    """
    values = (weight if weight.dim() == 1 else surviving_of(weight, pattern)).contiguous()
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    arguments = (x, values, bias, *pattern.arguments(), relu, pool)
    differentiated = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, values, bias)
    )
    if torch.compiler.is_compiling() or not differentiated:
        return _forward(*arguments)[0].permute(3, 0, 1, 2)
    return SparseFunction.apply(*arguments)[0].permute(3, 0, 1, 2)


def _check(x: Tensor, weight: Tensor, pattern: SparsePattern, bias: Tensor | None) -> None:
    _check_pattern(pattern)
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if name != "bias" or tensor is not None:
            check_tensor(name, tensor)
            assert tensor is not None
            check_like(name, tensor, "x", x)
    check_on_cpu("x", x)
    C = pattern.in_channels
    if x.dim() != 4 or x.shape[1] != C:
        raise wrong_shape("x", x, f"(B, {C}, H, W)")
    if min(pattern.output_size(*x.shape[2:])) < 1:
        kernel = f"{pattern.shape[2:]} with dilation {pattern.dilation}"
        wanted = f"an image no smaller than the kernel of {kernel} and padding {pattern.padding}"
        raise wrong_shape("x", x, wanted)
    check_shape("weight", weight, pattern.shape, (pattern.nnz,))
    if bias is not None:
        check_shape("bias", bias, pattern.shape[:1])


def _check_pattern(pattern: Any) -> None:
    if not isinstance(pattern, SparsePattern):
        raise TypeError(f"pattern: found {type(pattern).__name__}, wanted a SparsePattern")
