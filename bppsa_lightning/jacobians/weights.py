"""Transposed Jacobians of layers with weights: convolutions and linear layers.

Every entry is one weight, so the pattern comes with the weight of each entry, and a step that has
changed the weights only gathers them again. Nearly all pixels of a channel see the same weights in
the same order: such rows share a template.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.jacobians.cache import patterns
from bppsa_lightning.jacobians.device_copies import OnDevices
from bppsa_lightning.jacobians.geometry import (
    convolution_axis,
    convolution_padding,
    image_size,
    pair,
)
from bppsa_lightning.jacobians.pattern import Pattern
from bppsa_lightning.ops import jacobians as operators
from bppsa_lightning.ops._checks import check_bool, check_values, wrong_shape


@dataclass(frozen=True, eq=False)
class WeightJacobian(OnDevices):
    """A pattern, and which weight each of its entries is.

    Attributes:
        pattern: of the transposed Jacobian.
        source: int32, indices into the flattened weight: template after template.
        first: (rows,) int32; where the template of each row begins. Entry e of row r is the weight
            source[first[r] + e - crow[r]].
        output_size: of the layer, without batch: (C_out, H', W'), (C_out, L') or (out,).
        weight_shape: of the layer.
    """

    pattern: Pattern
    source: Tensor
    first: Tensor
    output_size: tuple[int, ...]
    weight_shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Memory of the pattern and its sources."""
        return self.pattern.bytes + 4 * (self.source.numel() + self.first.numel())

    def values(self, weight: Tensor) -> Tensor:
        """(nnz,) of a weight, where the weight is: its numbers of now at the fixed pattern.

        Not differentiable.

        Raises:
            TypeError, ValueError: another shape than the pattern was built for, dtype or device.
        """
        weight = check_values("weight", weight)
        if weight.shape != self.weight_shape:
            wanted = f"{self.weight_shape}, for which the pattern was built"
            raise wrong_shape("weight", weight, wanted)
        here = self.on(weight.device)
        p = here.pattern
        return operators.weight_values(weight, here.source, here.first, p.crow, p.nnz)

    def csr(self, weight: Tensor) -> Tensor:
        """The transposed Jacobian as a torch.sparse_csr tensor, values as of `values`."""
        return self.pattern.csr(self.values(weight))


def conv2d_pattern(
    keep: Tensor,
    input_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> WeightJacobian:
    """The pattern of a convolution's transposed Jacobian, for weights that will change.

    Args:
        keep: (C_out, C_in / groups, KH, KW) bool; the weights that may differ from zero (a pruning
            mask). All others are left out of the pattern. Read on the CPU, from any device.
        input_size, stride, padding, dilation, groups: as for `conv2d`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `conv2d`.
    """
    check_bool("keep", keep)
    _check_shape("keep", keep, _CONV2D)
    C_out, C_in, KH, KW = keep.shape
    if not isinstance(groups, int) or groups < 1 or C_out % groups:
        raise ValueError(
            f"groups: found {groups!r}, wanted a divisor of the {C_out} output channels"
        )
    H, W = image_size(input_size, C_in * groups)
    strides, dilations = pair("stride", stride, 1), pair("dilation", dilation, 1)
    paddings = convolution_padding(padding, (KH, KW), strides, dilations)
    y = convolution_axis(H, KH, strides[0], paddings[0], dilations[0])
    x = convolution_axis(W, KW, strides[1], paddings[1], dilations[1])
    crow, col, source, first = operators.convolution_pattern(keep.cpu().contiguous(), y, x, groups)
    output_size = (C_out, y[-1], x[-1])
    pattern = Pattern.trusted(crow, col, (C_in * groups * H * W, math.prod(output_size)))
    return WeightJacobian(pattern, source, first, output_size, tuple(keep.shape))


def conv2d(
    weight: Tensor,
    input_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    keep_zeros: bool = False,
) -> Tensor:
    """Transposed Jacobian of `torch.nn.functional.conv2d`, straight into CSR.

    Args:
        weight: (C_out, C_in / groups, KH, KW), float32 or float64, on the CPU or a CUDA device.
        input_size: (H, W), (C_in, H, W), or an input's (B, C_in, H, W), of which B plays no part.
        stride, dilation: one or two numbers.
        padding: one or two numbers, "same" or "valid"; of zeros.
        groups: as PyTorch's.
        keep_zeros: whether weights that are exactly 0 (pruned ones) get entries too. By default
            they are left out.

    Returns:
        torch.sparse_csr (C_in * H * W, C_out * H' * W'), int32 indices, of weight's dtype and
        device, without gradient. Entry ((c, y, x), (o, y', x')) is ∂out[o, y', x'] / ∂in[c, y, x].
        The indices may be shared with other calls' results: do not change them in place.

    Raises:
        TypeError: `weight` is no dense float tensor.
        ValueError: shapes or numbers do not fit.
        RuntimeError: the Jacobian has 2^31 entries or more.

    Source: arXiv:1907.10134, section 3.4.
    """
    return _of_weight(
        conv2d_pattern, weight, keep_zeros, input_size, stride, padding, dilation, groups
    )


def conv1d_pattern(
    keep: Tensor,
    input_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> WeightJacobian:
    """As `conv2d_pattern`, of keep (C_out, C_in / groups, K)."""
    check_bool("keep", keep)
    _check_shape("keep", keep, _CONV1D)
    size = (input_size,) if isinstance(input_size, int) else tuple(input_size)
    if len(size) not in (1, 2, 3):
        raise ValueError(f"input_size: found {size}, wanted L, (C, L) or (B, C, L)")
    flat = conv2d_pattern(
        keep.unsqueeze(2),
        (1, size[-1]) if len(size) == 1 else (*size[:-1], 1, size[-1]),
        (1, _single("stride", stride)),
        padding if isinstance(padding, str) else (0, _single("padding", padding)),
        (1, _single("dilation", dilation)),
        groups,
    )
    output_size = (flat.output_size[0], flat.output_size[2])
    return replace(flat, output_size=output_size, weight_shape=tuple(keep.shape))


def conv1d(
    weight: Tensor,
    input_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    keep_zeros: bool = False,
) -> Tensor:
    """Transposed Jacobian of `torch.nn.functional.conv1d`: see `conv2d`.

    Args:
        weight: (C_out, C_in / groups, K).
        input_size: L, (L,), (C_in, L) or (B, C_in, L).

    Returns:
        torch.sparse_csr (C_in * L, C_out * L').
    """
    return _of_weight(
        conv1d_pattern, weight, keep_zeros, input_size, stride, padding, dilation, groups
    )


def linear_pattern(keep: Tensor) -> WeightJacobian:
    """As `conv2d_pattern`, of keep (out, in)."""
    check_bool("keep", keep)
    _check_shape("keep", keep, _LINEAR)
    as_conv = conv2d_pattern(keep[:, :, None, None], (1, 1))
    return replace(as_conv, output_size=as_conv.output_size[:1], weight_shape=tuple(keep.shape))


def linear(weight: Tensor, keep_zeros: bool = False) -> Tensor:
    """Transposed Jacobian of `torch.nn.functional.linear`: the transposed weight in CSR.

    Args:
        weight: (out, in), float32 or float64, on the CPU or a CUDA device.
        keep_zeros: as for `conv2d`.

    Returns:
        torch.sparse_csr (in, out), int32 indices, without gradient.

    Raises:
        TypeError, ValueError, RuntimeError: as for `conv2d`.
    """
    return _of_weight(linear_pattern, weight, keep_zeros)


def _of_weight(
    pattern: Callable[..., WeightJacobian], weight: Tensor, keep_zeros: bool, *geometry: Any
) -> Tensor:
    """The Jacobian at a weight. Patterns of weights without zeros are kept for the next call."""
    weight = check_values("weight", weight)
    _check_shape("weight", weight, _SHAPES[pattern])
    keep = weight != 0
    if not keep_zeros and not bool(keep.all()):
        return pattern(keep, *geometry).csr(weight)
    key = (pattern, weight.shape, *(g if isinstance(g, (int, str)) else tuple(g) for g in geometry))
    jacobian = patterns.get(key, lambda: pattern(torch.ones_like(keep, device="cpu"), *geometry))
    return jacobian.csr(weight)


_CONV2D = "(C_out, C_in / groups, KH, KW)"
_CONV1D = "(C_out, C_in / groups, K)"
_LINEAR = "(out, in)"
_SHAPES: dict[Callable[..., WeightJacobian], str] = {
    conv2d_pattern: _CONV2D,
    conv1d_pattern: _CONV1D,
    linear_pattern: _LINEAR,
}


def _check_shape(name: str, found: Tensor, wanted: str) -> None:
    if found.dim() != wanted.count(",") + 1:
        raise wrong_shape(name, found, wanted)


def _single(name: str, value: Any) -> int:
    found = value if isinstance(value, int) else (tuple(value) or (None,))[0]
    if not isinstance(found, int) or (not isinstance(value, int) and len(value) != 1):
        raise ValueError(f"{name}: found {value!r}, wanted an int or one in a tuple")
    return found
