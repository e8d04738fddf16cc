"""Transposed Jacobians of pooling layers: each channel on its own, windows that may overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.jacobians.cache import patterns
from bppsa_lightning.jacobians.device_copies import OnDevices, built_on_the_cpu
from bppsa_lightning.jacobians.geometry import (
    Windows,
    adaptive_axis,
    image_size,
    pair,
    pooling_axis,
)
from bppsa_lightning.jacobians.pattern import Pattern
from bppsa_lightning.ops import jacobians as operators
from bppsa_lightning.ops._checks import check_dtype, check_values, wrong_shape


def _arguments(y: Windows, x: Windows) -> tuple[Any, ...]:
    """What the operators take of both axes."""
    return y.first, y.out, x.first, x.out, y.output, x.output


def _pattern(channels: int, H: int, W: int, y: Windows, x: Windows) -> Pattern:
    *windows, rows, columns = _arguments(y, x)
    crow, col = operators.window_pattern(*windows, channels, rows, columns)
    return Pattern.trusted(crow, col, (channels * H * W, channels * y.output * x.output))


@dataclass(frozen=True, eq=False)
class MaxPoolJacobian(OnDevices):
    """The guaranteed pattern of a max-pooling: every input of a window may be its largest.

    Attributes:
        pattern: of the transposed Jacobian.
        input_size: (C, H, W). output_size: (C, H', W').
    """

    pattern: Pattern
    input_size: tuple[int, int, int]
    output_size: tuple[int, int, int]
    _y: Windows
    _x: Windows
    _geometry: tuple[list[int], list[int]]

    @property
    def bytes(self) -> int:
        """Memory of the pattern."""
        return self.pattern.bytes

    def values(self, x: Tensor) -> Tensor:
        """1 where an input is its window's first largest, 0 elsewhere in the pattern.

        Args:
            x: (C, H, W), or (B, C, H, W) for a batch; float32 or float64, on the CPU or a CUDA
                device.

        Returns:
            (nnz,), or (B, nnz), where x is.

        Raises:
            TypeError, ValueError: another shape, dtype or device.
        """
        x = check_values("x", x)
        if x.dim() not in (3, 4) or tuple(x.shape[-3:]) != self.input_size:
            raise wrong_shape("x", x, f"(C, H, W) = {self.input_size} or (B, C, H, W)")
        values = self.of_planes(x.reshape(-1, *x.shape[-2:]))
        return values.reshape(-1) if x.dim() == 3 else values.reshape(x.shape[0], self.pattern.nnz)

    def of_planes(self, planes: Tensor) -> Tensor:
        """`values` of (B * C, H, W) that were checked: (B * C, entries of a plane)."""
        here = self.on(planes.device)
        return operators.max_pool_values(planes, *_arguments(here._y, here._x), *self._geometry)


def max_pool2d_pattern(
    input_size: Sequence[int],
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> MaxPoolJacobian:
    """The pattern of a max-pooling's transposed Jacobian, for inputs to come.

    Args:
        input_size: (C, H, W).
        kernel_size, stride, padding, dilation, ceil_mode: as for `max_pool2d`.
    """
    C, H, W = _plane_size(input_size)
    kernels = pair("kernel_size", kernel_size, 1)
    strides = kernels if stride is None else pair("stride", stride, 1)
    paddings, dilations = pair("padding", padding, 0), pair("dilation", dilation, 1)
    geometry = tuple(zip(kernels, strides, paddings, dilations, strict=True))

    def build() -> MaxPoolJacobian:
        y = pooling_axis(H, *geometry[0], ceil_mode)
        square = H == W and geometry[0] == geometry[1]
        x = y if square else pooling_axis(W, *geometry[1], ceil_mode)
        output_size = (C, y.output, x.output)
        of_axes = (list(geometry[0]), list(geometry[1]))
        return MaxPoolJacobian(_pattern(C, H, W, y, x), (C, H, W), output_size, y, x, of_axes)

    return patterns.get(("max_pool2d", C, H, W, geometry, ceil_mode), build)


def max_pool2d(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Transposed Jacobian of `torch.nn.functional.max_pool2d` at x.

    Args:
        x: (C, H, W) or (B, C, H, W), float32 or float64, on the CPU or a CUDA device. All its
            numbers make one state: the planes of a batch come one after another, as more channels
            would.
        kernel_size, stride, padding, dilation, ceil_mode: as PyTorch's.

    Returns:
        torch.sparse_csr (B * C * H * W, B * C * H' * W'), int32 indices (which other calls' results
        may share: do not change them in place), of x's dtype, without gradient. The pattern is the
        guaranteed one, each input with every window that reads it; values are 1 for the input that
        the window takes and 0 (stored) for the others.

    Raises:
        TypeError, ValueError: arguments do not fit.
    """
    x = check_values("x", x)
    if x.dim() not in (3, 4):
        raise wrong_shape("x", x, "(C, H, W) or (B, C, H, W)")
    planes = x.reshape(-1, *x.shape[-2:])
    jacobian = max_pool2d_pattern(planes.shape, kernel_size, stride, padding, dilation, ceil_mode)
    return jacobian.pattern.csr(jacobian.of_planes(planes).reshape(-1))


@dataclass(frozen=True, eq=False)
class AveragePoolJacobian(OnDevices):
    """A pooling whose Jacobian never changes.

    Attributes:
        pattern: of the transposed Jacobian.
        output_size: (C, H', W').
        share: (H' * W',) float64; what each input of a window counts.
    """

    pattern: Pattern
    output_size: tuple[int, int, int]
    share: Tensor

    def values(
        self, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
    ) -> Tensor:
        """(nnz,) on a device, of torch's default dtype if none is given."""
        here = self.on(device)
        share = here.share.to(check_dtype(dtype))
        return share[here.pattern.col % share.numel()]


@built_on_the_cpu
def avg_pool2d_pattern(
    input_size: Sequence[int],
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> AveragePoolJacobian:
    """The Jacobian of `avg_pool2d`, with what it needs to be given values of any dtype."""
    C, H, W = _plane_size(input_size)
    kernels = pair("kernel_size", kernel_size, 1)
    strides = kernels if stride is None else pair("stride", stride, 1)
    paddings = pair("padding", padding, 0)
    if divisor_override is not None and (
        not isinstance(divisor_override, int) or divisor_override == 0
    ):
        raise ValueError(f"divisor_override: found {divisor_override!r}, wanted None or not 0")
    axes, counts = [], []
    for n, k, s, p in zip((H, W), kernels, strides, paddings, strict=True):
        axis = pooling_axis(n, k, s, p, 1, ceil_mode)
        begin = torch.arange(axis.output) * s - p
        with_padding = (begin + k).clamp(max=n + p) - begin
        axes.append(axis)
        counts.append(with_padding if count_include_pad else axis.count)
    divisor = counts[0].unsqueeze(1) * counts[1]
    if divisor_override is not None:
        divisor = torch.full_like(divisor, divisor_override)
    y, x = axes
    return AveragePoolJacobian(
        _pattern(C, H, W, y, x), (C, y.output, x.output), divisor.double().reciprocal().reshape(-1)
    )


def avg_pool2d(
    input_size: Sequence[int],
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Transposed Jacobian of `torch.nn.functional.avg_pool2d`.

    Args:
        input_size: (C, H, W).
        dtype: float32 or float64; torch's default if None.
        device: of the result.
        The rest: as PyTorch's.

    Returns:
        torch.sparse_csr (C * H * W, C * H' * W'), int32 indices.

    Raises:
        TypeError, ValueError: arguments do not fit.
    """
    jacobian = avg_pool2d_pattern(
        input_size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )
    return jacobian.pattern.csr(jacobian.values(dtype, device))


def adaptive_avg_pool2d_pattern(
    input_size: Sequence[int], output_size: int | Sequence[int | None]
) -> AveragePoolJacobian:
    """The Jacobian of `adaptive_avg_pool2d`, with what it needs to be given values of any dtype."""
    C, H, W = _plane_size(input_size)
    wanted = (output_size,) * 2 if isinstance(output_size, int) else tuple(output_size)
    if len(wanted) != 2:
        raise ValueError(f"output_size: found {output_size!r}, wanted one or two numbers or None")
    sizes = pair(
        "output_size", [n if m is None else m for m, n in zip(wanted, (H, W), strict=True)], 1
    )
    y, x = adaptive_axis(H, sizes[0]), adaptive_axis(W, sizes[1])
    share = (y.count.unsqueeze(1) * x.count).double().reciprocal().reshape(-1)
    return AveragePoolJacobian(_pattern(C, H, W, y, x), (C, *sizes), share)


def adaptive_avg_pool2d(
    input_size: Sequence[int],
    output_size: int | Sequence[int | None],
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Transposed Jacobian of `torch.nn.functional.adaptive_avg_pool2d`: see `avg_pool2d`.

    Args:
        input_size: (C, H, W).
        output_size: one or two numbers; None is the input's own.
    """
    jacobian = adaptive_avg_pool2d_pattern(input_size, output_size)
    return jacobian.pattern.csr(jacobian.values(dtype, device))


def _plane_size(input_size: Sequence[int]) -> tuple[int, int, int]:
    if len(tuple(input_size)) != 3:
        raise ValueError(f"input_size: found {tuple(input_size)}, wanted (C, H, W)")
    H, W = image_size(input_size)
    return int(tuple(input_size)[0]), H, W
