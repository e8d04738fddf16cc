"""Which weights of a layer survive, arranged for the kernels of `ops.sparse_conv2d`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.ops._checks import check_on_cpu, check_shape, check_tensor, wrong_shape


@dataclass(frozen=True, eq=False)
class SparsePattern:
    """Which weights of a convolution (or of a linear layer) survive, arranged for the kernels.

    Made once from a mask, by `SparsePattern.of`; the same for every step until the mask changes.

    Attributes:
        shape: of the weight, (O, C / groups, kernel rows, kernel columns).
        stride, dilation: (rows, columns).
        padding: (top, bottom, left, right), zeros.
        groups: of channels.
        index: (nnz,) int64, where the surviving weights stand in the flattened weight, ascending.
        rows: (O + 1,) int32, the first entry of each output channel.
        entries: (nnz, 2) int32, the input channel and the tap (row · columns + column) of each.
        rows_t, entries_t, order_t: the same for the input's gradient: entries by phase of the
            input pixels (row modulo stride, column modulo stride), then by input channel; each
            with its output channel and tap, and its place in `index`.
    """

    shape: tuple[int, int, int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    index: Tensor
    rows: Tensor
    entries: Tensor
    rows_t: Tensor
    entries_t: Tensor
    order_t: Tensor

    @staticmethod
    def of(
        mask: Tensor,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> SparsePattern:
        """The pattern of a mask.

        Args:
            mask: (O, C / groups, kernel rows, kernel columns) of a convolution, (O, C) of a linear
                layer; a weight survives where it is not 0. Any dtype.
            stride, dilation: one number, or rows and columns; at least 1.
            padding: one number, (rows, columns), or (top, bottom, left, right); at least 0.
            groups: as in `torch.nn.Conv2d`.

        Raises:
            TypeError, ValueError: an argument is none of these, or `groups` does not divide O.
        """
        mask = _checked_mask(mask)
        O, C, KH, KW = mask.shape
        groups = _numbers("groups", groups, (1,), 1)[0]
        if O % groups:
            raise ValueError(f"groups: found {groups}, wanted a divisor of the {O} output channels")
        SH, SW = stride = _numbers("stride", stride, (1, 2), 1)
        DH, DW = dilation = _numbers("dilation", dilation, (1, 2), 1)
        top, bottom, left, right = padding = _numbers("padding", padding, (1, 2, 4), 0)

        index = mask.ne(0).flatten().nonzero().squeeze(1)
        tap = index % (KH * KW)
        channel = index // (KH * KW) % C if C else index
        out = index // (KH * KW * C) if C else index
        channel = channel + (out // (O // groups) * C if O else 0)
        phase_row = (tap // KW * DH - top) % SH
        phase_column = (tap % KW * DW - left) % SW
        target = (phase_row * SW + phase_column) * (C * groups) + channel
        order_t = target.argsort(stable=True)
        return SparsePattern(
            (O, C, KH, KW),
            (SH, SW),
            (top, bottom, left, right),
            (DH, DW),
            groups,
            index,
            _first_of_each(out, O),
            torch.stack([channel, tap], 1).int(),
            _first_of_each(target, SH * SW * C * groups),
            torch.stack([out, tap], 1)[order_t].int(),
            order_t.int(),
        )

    @property
    def nnz(self) -> int:
        """Surviving weights."""
        return len(self.index)

    @property
    def density(self) -> float:
        """Surviving weights of all; 1 for a layer without any."""
        O, C, KH, KW = self.shape
        return self.nnz / (O * C * KH * KW) if O * C else 1.0

    @property
    def in_channels(self) -> int:
        """C."""
        return self.shape[1] * self.groups

    @property
    def _geometry(self) -> tuple[tuple[int, ...], ...]:
        return self.shape[2:], self.stride, self.padding, self.dilation

    def output_size(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of the output for an input's."""
        return output_size((rows, columns), *self._geometry)

    def arguments(self) -> tuple[Any, ...]:
        """What the operators take of it."""
        tensors = (self.rows, self.entries, self.rows_t, self.entries_t, self.order_t)
        return (*tensors, *map(list, self._geometry), self.groups)

    def dense(self, values: Tensor) -> Tensor:
        """The weight with these surviving values, zeros elsewhere.

        Args:
            values: (nnz,), in the order of ``index``, float32 or float64, on the CPU.

        Returns:
            Of ``shape``, of `values`' dtype; differentiable.

        Raises:
            TypeError, ValueError, RuntimeError: another dtype, shape or device.
        """
        check_tensor("values", values)
        check_shape("values", values, (self.nnz,))
        check_on_cpu("values", values)
        O, C, KH, KW = self.shape
        flat = torch.ops.bppsa.put_surviving(values.contiguous(), self.index, O * C * KH * KW)
        return flat.view(self.shape)


def output_size(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, int]:
    """Rows and columns of a convolution's output; padding (top, bottom, left, right)."""
    pads = (padding[0] + padding[1], padding[2] + padding[3])
    rows, columns = (
        (size[d] + pads[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in (0, 1)
    )
    return rows, columns


def _checked_mask(mask: Any) -> Tensor:
    """Of four dimensions, on the CPU."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask: found {type(mask).__name__}, wanted a torch.Tensor")
    if mask.dim() not in (2, 4) or (mask.dim() == 4 and 0 in mask.shape[2:]):
        wanted = "(O, C) or (O, C / groups, rows, columns) with at least one tap"
        raise wrong_shape("mask", mask, wanted)
    if mask.numel() >= 2**31:
        raise ValueError(f"mask: found {mask.numel()} weights, wanted less than 2**31")
    mask = mask.detach().cpu()
    return mask[:, :, None, None] if mask.dim() == 2 else mask


def _first_of_each(target: Tensor, n: int) -> Tensor:
    """How many of `target` are below 0, 1, … n: the first entry of each of n rows, and the end."""
    counts = torch.bincount(target, minlength=n) if n else target.new_zeros(0)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()


def _numbers(name: str, given: Any, lengths: tuple[int, ...], least: int) -> tuple[int, ...]:
    """`given` as the longest of `lengths`, each number repeated as often as that takes."""
    found = tuple(given) if isinstance(given, Sequence) else (given,)
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in found):
        raise TypeError(f"{name}: found {given!r}, wanted integers")
    if len(found) not in lengths or any(n < least for n in found):
        wanted = " or ".join(map(str, lengths))
        raise ValueError(f"{name}: found {given!r}, wanted {wanted} of at least {least}")
    repeats = lengths[-1] // len(found)
    return tuple(n for n in found for _ in range(repeats))
