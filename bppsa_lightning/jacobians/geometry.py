"""Arguments of convolution and pooling: pairs, sizes, and which outputs read which inputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa_lightning.jacobians.device_copies import OnDevices, built_on_the_cpu
from bppsa_lightning.ops import jacobians as operators


def pair(name: str, value: int | Sequence[int], least: int) -> tuple[int, int]:
    """(vertical, horizontal) of an int or two of them; ValueError below `least`."""
    found = (value, value) if isinstance(value, int) else tuple(value)
    if len(found) != 2 or not all(isinstance(v, int) and v >= least for v in found):
        raise ValueError(f"{name}: found {value!r}, wanted an int or two of at least {least}")
    return found[0], found[1]


def image_size(input_size: Sequence[int], channels: int | None = None) -> tuple[int, int]:
    """(H, W) of (H, W), (C, H, W) or (B, C, H, W); ValueError if C is given and is not `channels`.

    B is left aside: samples do not see each other.
    """
    size = tuple(int(n) for n in input_size)
    fits = len(size) in (2, 3, 4) and all(n >= 1 for n in size)
    if fits and channels is not None and len(size) > 2:
        fits = size[-3] == channels
    if not fits:
        wanted = "C" if channels is None else channels
        raise ValueError(
            f"input_size: found {size}, wanted (H, W), ({wanted}, H, W) or (B, {wanted}, H, W), "
            "none of them empty"
        )
    return size[-2], size[-1]


Axis = tuple[int, int, int, int, int, int]
"""Size of the input, kernel, stride, padding in front, dilation, size of the output."""


@built_on_the_cpu
def convolution_axis(
    size: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int
) -> Axis:
    """One axis of a convolution; padding before and after. ValueError if the kernel is too long."""
    reach = dilation * (kernel - 1) + 1
    if size + sum(padding) < reach:
        raise ValueError(
            f"input_size: found {size}, with padding {size + sum(padding)}; the dilated kernel of "
            f"size {reach} wants at least that"
        )
    output = (size + sum(padding) - reach) // stride + 1
    return size, kernel, stride, padding[0], dilation, output


def convolution_padding(
    padding: str | int | Sequence[int], kernel: tuple[int, int], stride: tuple[int, int],
    dilation: tuple[int, int],
) -> list[tuple[int, int]]:  # fmt: skip
    """(before, after) of each axis, of a number, two, "valid" or "same"."""
    if not isinstance(padding, str):
        return [(p, p) for p in pair("padding", padding, 0)]
    if padding == "valid":
        return [(0, 0), (0, 0)]
    if padding != "same":
        raise ValueError(f"padding: found {padding!r}, wanted numbers, 'same' or 'valid'")
    if stride != (1, 1):
        raise ValueError(f"padding: found 'same' with stride {stride}, wanted stride 1 for 'same'")
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [(t // 2, t - t // 2) for t in total]


@dataclass(frozen=True)
class Windows(OnDevices):
    """One axis of a pooling.

    Attributes:
        output: its size after the pooling.
        first: (input + 1,) int32. The outputs that read input i are out[first[i]] … , ascending.
        out: int32.
    """

    output: int
    first: Tensor
    out: Tensor

    @property
    def count(self) -> Tensor:
        """(output,) int64; how many inputs each output reads."""
        return torch.bincount(self.out, minlength=self.output)


_LIKE = torch.empty(0, dtype=torch.int32, device="cpu")  # operators are found by a tensor's device


@built_on_the_cpu
def pooling_axis(
    size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> Windows:
    """Windows of fixed size, `stride` apart, as PyTorch places them; ValueError if none fits."""
    reach = dilation * (kernel - 1) + 1
    if 2 * padding > kernel:
        raise ValueError(
            f"padding: found {padding}, wanted at most half the kernel, {kernel // 2}, as PyTorch "
            "does"
        )
    room = size + 2 * padding - reach
    output = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (output - 1) * stride >= size + padding:
        output -= 1  # a window that would begin beyond the image and its padding in front
    if output < 1:
        raise ValueError(
            f"input_size: found {size}, with padding {size + 2 * padding}; the dilated window of "
            f"size {reach} wants at least that"
        )
    geometry = (size, kernel, stride, padding, dilation, output)
    return Windows(output, *operators.pooling_axis(_LIKE, geometry))


@built_on_the_cpu
def adaptive_axis(size: int, output: int) -> Windows:
    """Windows of adaptive pooling: output o reads floor(o n / m) … ceil((o + 1) n / m) - 1."""
    o = torch.arange(output)
    begin, end = o * size // output, -((-(o + 1) * size) // output)
    inputs = torch.arange(size).unsqueeze(1)
    reads = (inputs >= begin) & (inputs < end)
    first = torch.zeros(size + 1, dtype=torch.int32)
    first[1:] = reads.sum(1).cumsum(0)
    return Windows(output, first, reads.nonzero()[:, 1].to(torch.int32))
