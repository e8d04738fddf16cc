"""sparse_conv2d, sparse_linear: layers with few weights, at the cost of the weights that survive.

B samples, C channels in, O channels out, H and W rows and columns of the image.

Results lie with the samples innermost, strides (1, H·W·B, W·B, B): what the kernels read without a
copy. Elementwise operations of PyTorch keep that layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import reference

_DTYPES = (torch.float32, torch.float64)


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
        if not isinstance(mask, Tensor):
            raise TypeError(f"mask: found {type(mask).__name__}, wanted a torch.Tensor")
        if mask.dim() not in (2, 4) or (mask.dim() == 4 and 0 in mask.shape[2:]):
            raise ValueError(
                f"mask: found shape {tuple(mask.shape)}, wanted (O, C) or (O, C / groups, rows, "
                "columns) with at least one tap"
            )
        mask = mask.detach().cpu()
        mask = mask[:, :, None, None] if mask.dim() == 2 else mask
        O, C, KH, KW = mask.shape
        if mask.numel() >= 2**31:
            raise ValueError(f"mask: found {mask.numel()} weights, wanted less than 2**31")
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

    def output_size(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of the output for an input's."""
        sizes = zip(
            (rows, columns), self.shape[2:], self.stride, self.dilation,
            (self.padding[:2], self.padding[2:]), strict=True,
        )  # fmt: skip
        H, W = ((n + sum(pad) - d * (k - 1) - 1) // s + 1 for n, k, s, d, pad in sizes)
        return H, W

    def arguments(self) -> tuple[Any, ...]:
        """What the operators take of it."""
        tensors = (self.rows, self.entries, self.rows_t, self.entries_t, self.order_t)
        numbers = (self.shape[2:], self.stride, self.padding, self.dilation)
        return (*tensors, *map(list, numbers))

    def dense(self, values: Tensor) -> Tensor:
        """The weight with these surviving values, zeros elsewhere.

        Args:
            values: (nnz,), in the order of ``index``, float32 or float64, on the CPU.

        Returns:
            Of ``shape``, of `values`' dtype; differentiable.

        Raises:
            TypeError: `values` is no tensor, or of another dtype.
            ValueError: it has another shape.
            RuntimeError: it is not on the CPU.
        """
        _check_numbers("values", values, [(self.nnz,)])
        O, C, KH, KW = self.shape
        flat = torch.ops.bppsa.put_surviving(values.contiguous(), self.index, O * C * KH * KW)
        return flat.view(self.shape)


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
        As `sparse_conv2d`.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x: found {type(x).__name__}, wanted a torch.Tensor")
    if not isinstance(pattern, SparsePattern):
        raise TypeError(f"pattern: found {type(pattern).__name__}, wanted a SparsePattern")
    O, C, *taps = pattern.shape
    if taps != [1, 1] or any(pattern.padding) or pattern.groups != 1:
        raise ValueError(
            f"pattern: found that of a convolution, with a weight of {pattern.shape}, padding "
            f"{pattern.padding} and {pattern.groups} groups; wanted that of an (O, C) mask"
        )
    if x.dim() < 1 or x.shape[-1] != C:
        raise ValueError(f"x: found shape {tuple(x.shape)}, wanted (..., {C})")
    if isinstance(weight, Tensor):
        if weight.shape not in ((O, C), (pattern.nnz,)):
            raise ValueError(
                f"weight: found shape {tuple(weight.shape)}, wanted {(O, C)} or {(pattern.nnz,)}"
            )
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
    values = (weight if weight.dim() == 1 else _surviving(weight, pattern)).contiguous()
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    arguments = (x, values, bias, *pattern.arguments(), pattern.groups, relu, pool)
    differentiated = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, values, bias)
    )
    if torch.compiler.is_compiling() or not differentiated:
        return _forward(*arguments)[0].permute(3, 0, 1, 2)
    return _Layer.apply(*arguments).permute(3, 0, 1, 2)


def _check(x: Tensor, weight: Tensor, pattern: SparsePattern, bias: Tensor | None) -> None:
    if not isinstance(pattern, SparsePattern):
        raise TypeError(f"pattern: found {type(pattern).__name__}, wanted a SparsePattern")
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if name == "bias" and tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: found {type(tensor).__name__}, wanted a torch.Tensor")
        if tensor.dtype not in _DTYPES:
            raise TypeError(f"{name}: found dtype {tensor.dtype}, wanted float32 or float64")
        if tensor.dtype != x.dtype:
            raise TypeError(f"{name}: found dtype {tensor.dtype}, wanted x's {x.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"{name}: found on {tensor.device}, wanted on x's {x.device}")
    if x.device.type not in ("cpu", "meta"):
        raise RuntimeError(f"x: found on {x.device}, where the sparse layers have no kernel")
    C = pattern.in_channels
    if x.dim() != 4 or x.shape[1] != C:
        raise ValueError(f"x: found shape {tuple(x.shape)}, wanted (B, {C}, H, W)")
    if min(pattern.output_size(*x.shape[2:])) < 1:
        raise ValueError(
            f"x: found shape {tuple(x.shape)}, wanted an image no smaller than the kernel of "
            f"{pattern.shape[2:]} with dilation {pattern.dilation} and padding {pattern.padding}"
        )
    if weight.shape not in (pattern.shape, (pattern.nnz,)):
        raise ValueError(
            f"weight: found shape {tuple(weight.shape)}, wanted {pattern.shape} or {(pattern.nnz,)}"
        )
    if bias is not None and bias.shape != pattern.shape[:1]:
        raise ValueError(f"bias: found shape {tuple(bias.shape)}, wanted {pattern.shape[:1]}")


def _check_numbers(name: str, tensor: Any, shapes: Sequence[tuple[int, ...]]) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: found {type(tensor).__name__}, wanted a torch.Tensor")
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"{name}: found dtype {tensor.dtype}, wanted float32 or float64")
    if tensor.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"{name}: found shape {tuple(tensor.shape)}, wanted {wanted}")
    if tensor.device.type not in ("cpu", "meta"):
        raise RuntimeError(
            f"{name}: found on {tensor.device}, where the sparse layers have no kernel"
        )


# --- weights and surviving values --------------------------------------------------------------


def surviving(weight: Tensor, pattern: SparsePattern) -> Tensor:
    """The surviving values of a weight.

    Args:
        weight: of ``pattern.shape``, or (O, C) of a linear layer's; float32 or float64, on the CPU.

    Returns:
        (nnz,), in the order of ``pattern.index``, of the weight's dtype; differentiable.

    Raises:
        TypeError: `weight` is no tensor, or of another dtype.
        ValueError: it has another shape.
        RuntimeError: it is not on the CPU.
    """
    shapes: list[tuple[int, ...]] = [pattern.shape]
    if pattern.shape[2:] == (1, 1):
        shapes.append(pattern.shape[:2])
    _check_numbers("weight", weight, shapes)
    return _surviving(weight, pattern)


def _surviving(weight: Tensor, pattern: SparsePattern) -> Tensor:
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


class _Take(torch.autograd.Function):
    """As `_Layer`."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        values = torch.ops.bppsa.take_surviving(*arguments)
        _take_setup(ctx, arguments, values)
        return values

    backward = staticmethod(_take_backward)


torch.library.register_autograd("bppsa::take_surviving", _take_backward, setup_context=_take_setup)
torch.library.register_autograd("bppsa::put_surviving", _put_backward, setup_context=_put_setup)


@torch.library.register_fake("bppsa::take_surviving")
def _(weight: Tensor, index: Tensor) -> Tensor:
    return weight.new_empty(index.shape)


@torch.library.register_fake("bppsa::put_surviving")
def _(values: Tensor, index: Tensor, size: int) -> Tensor:
    return values.new_empty((size,))


# --- the formula ---------------------------------------------------------------------------


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, values, bias, *ctx.pattern, relu, pool = inputs
    kept = (output[0] if relu and not pool else None, output[1] if pool else None)
    ctx.save_for_backward(x, values, *kept)


def _backward(ctx: Any, grad: Tensor, _grad_of_places: Any = None) -> tuple[Any, ...]:
    x, values, output, places = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:3]
    gradients: Sequence[Tensor | None]
    *pattern, _groups = ctx.pattern
    if torch.is_grad_enabled():
        size = _output_size(x, *pattern[-4:])
        grad = reference.before_relu_and_pool(grad, output, places, size).permute(3, 0, 1, 2)
        gradients = _differentiable_backward(grad, x, values, ctx.pattern, wanted)
    else:
        bits = sum(1 << i for i, want in enumerate(wanted) if want)
        if output is not None or places is not None:
            grad = grad.contiguous()
        grad = grad.permute(3, 0, 1, 2)
        grad_x, grad_values, grad_bias = _run_backward(
            grad, output, places, x, values, *pattern, bits
        )
        gradients = (grad_x.permute(3, 0, 1, 2) if wanted[0] else None, grad_values, grad_bias)
    return (*(g if w else None for g, w in zip(gradients, wanted, strict=True)), *_NO_GRADIENTS)


_NO_GRADIENTS = (None,) * 12


def _differentiable_backward(
    grad: Tensor, x: Tensor, values: Tensor, pattern: Sequence[Any], wanted: Sequence[bool]
) -> Sequence[Tensor | None]:
    """The same gradients as functions of everything they depend on, by the dense layer's."""
    gradients: list[Tensor | None] = [None, None, grad.sum((0, 2, 3)) if wanted[2] else None]
    places = [i for i in (0, 1) if wanted[i]]
    if places:
        with torch.enable_grad():
            output = reference.sparse_conv2d(x, values, *pattern)
            found = torch.autograd.grad(
                output, [(x, values)[i] for i in places], grad, create_graph=True
            )
        for i, gradient in zip(places, found, strict=True):
            gradients[i] = gradient
    return gradients


_forward = torch.ops.bppsa.sparse_conv2d.default
_run_backward = torch.ops.bppsa.sparse_conv2d_backward.default


class _Layer(torch.autograd.Function):
    """The formula without the layers of a registered operator's; see ops/recurrent.py."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        results = _forward(*arguments)
        _setup(ctx, arguments, results)
        return results[0]

    backward = staticmethod(_backward)


torch.library.register_autograd("bppsa::sparse_conv2d", _backward, setup_context=_setup)


def _output_size(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> list[int]:
    """Rows and columns of the convolution's own output."""
    pads = (padding[0] + padding[1], padding[2] + padding[3])
    return [
        (x.shape[2 + d] + pads[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1
        for d in (0, 1)
    ]


@torch.library.register_fake("bppsa::sparse_conv2d")
def _(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    rows: Tensor,
    entries: Tensor,
    rows_t: Tensor,
    entries_t: Tensor,
    order_t: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    relu: bool = False,
    pool: bool = False,
) -> tuple[Tensor, Tensor]:
    size = _output_size(x, kernel, stride, padding, dilation)
    result = [n // 2 for n in size] if pool else size
    output = x.new_empty((rows.shape[0] - 1, *result, x.shape[0]))
    return output, x.new_empty(output.shape if pool else (0,), dtype=torch.uint8)


@torch.library.register_fake("bppsa::sparse_conv2d_backward")
def _(
    grad: Tensor,
    output: Tensor | None,
    places: Tensor | None,
    x: Tensor,
    values: Tensor,
    rows: Tensor,
    entries: Tensor,
    rows_t: Tensor,
    entries_t: Tensor,
    order_t: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    wanted: int,
) -> tuple[Tensor, Tensor, Tensor]:
    B, C, H, W = x.shape
    shapes = ((C, H, W, B), values.shape, (rows.shape[0] - 1,))
    grad_x, grad_values, grad_bias = (
        x.new_empty(s if wanted >> i & 1 else (0,)) for i, s in enumerate(shapes)
    )
    return grad_x, grad_values, grad_bias
