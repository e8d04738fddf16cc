"""indrnn: an independently recurrent layer, whose units hand their state to themselves alone.

T steps, B batch, H state. The transposed Jacobians are diagonal, J_t = diag(u φ'(z_t)): the
backward is one walk, fused with all gradients, or, where the planner finds more workers than units,
`diagonal_scan` over them, parallel in time.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import _library, planner, reference
from bppsa_lightning.ops._autograd import bit_mask, only, register_formula
from bppsa_lightning.ops._checks import (
    check_like,
    check_shape,
    check_tensor,
    register_fake,
    wrong_shape,
)
from bppsa_lightning.ops._recorded import is_plain
from bppsa_lightning.ops.diagonal import diagonal_scan
from bppsa_lightning.ops.log import record_scan


def indrnn(
    x: Tensor,
    h0: Tensor | None,
    u: Tensor,
    nonlinearity: str = "relu",
    algorithm: str = "auto",
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """An independently recurrent layer (IndRNN): h_t = φ(x_t + u ⊙ h_{t-1}), φ = relu or tanh.

    Args:
        x: (T, B, H), T >= 1, float32 or float64: the input's part of the sums, W_ih applied and
            biases added. All tensors share its dtype and device. Of batch-first data, pass
            ``x.transpose(0, 1)``.
        h0: (B, H), or None for zeros.
        u: (H,), what each unit takes of its own state.
        nonlinearity: "relu" or "tanh".
        algorithm: of the backward scan; see `diagonal_scan`. "linear" is one fused walk.
        reverse: time runs from T-1 down to 0; output[t] is the state after steps T-1 … t.

    Returns:
        output (T, B, H), the state of each step, and h_n (B, H), the last one. Differentiable any
        number of times: from the second derivative on by `diagonal_scan`; under a transform of
        torch.func step by step, in plain torch.

    Raises:
        TypeError: an argument is not a tensor, or of another dtype.
        ValueError: shapes, devices, nonlinearity or algorithm do not fit.
        RuntimeError: CUDA tensors, and the CUDA kernels were not built.

    Source: Li et al., arXiv:1803.04831, equation 2.
    """
    _check(x, h0, u, nonlinearity)
    planner.check_algorithm(algorithm, None)
    if is_plain():
        zeros = x.new_zeros(x.shape[1:])
        output = reference.indrnn(x, zeros if h0 is None else h0, u, nonlinearity, reverse)
        return output, output[0 if reverse else -1]
    x = x if x.stride(-1) == 1 else x.contiguous()
    h0, u = None if h0 is None else h0.contiguous(), u.contiguous()
    if torch.compiler.is_compiling():
        return tuple(_forward(x, h0, u, nonlinearity, bool(reverse), algorithm))  # type: ignore[return-value]
    found: tuple[Tensor, Tensor] = _IndRnn.apply(x, h0, u, nonlinearity, bool(reverse), algorithm)
    return found


def _check(x: Tensor, h0: Tensor | None, u: Tensor, nonlinearity: str) -> None:
    check_tensor("x", x)
    if x.dim() != 3 or x.shape[0] < 1 or x.shape[2] < 1:
        raise wrong_shape("x", x, "(T, B, H) with T >= 1 and H >= 1")
    if x.device.type not in ("cpu", "cuda", "meta"):
        raise RuntimeError(f"x: found on {x.device}, where the operator has no kernel")
    if x.is_cuda and not _library.HAS_CUDA_KERNELS:
        raise RuntimeError(f"x: found on a CUDA device, but {_library.NO_CUDA_KERNELS}")
    _, B, H = x.shape
    for name, tensor, shape in (("h0", h0, (B, H)), ("u", u, (H,))):
        if tensor is not None or name == "u":
            check_tensor(name, tensor)
            assert tensor is not None
            check_shape(name, tensor, shape)
            check_like(name, tensor, "x", x)
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity: found {nonlinearity!r}, wanted 'tanh' or 'relu'")


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, h0, u, ctx.nonlinearity, ctx.reverse, ctx.algorithm = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[0], h0, u)


def _backward(ctx: Any, grad_output: Tensor | None, grad_h_n: Tensor | None) -> tuple[Any, ...]:
    """The gradients of the operator's arguments, from those of output and h_n."""
    if grad_output is None and grad_h_n is None:
        return (None,) * 6
    output, h0, u = ctx.saved_tensors
    T, B, H = map(int, output.shape)
    plan = planner.plan(
        planner.Request(planner.DIAGONAL, T, B, H, output.device, ctx.algorithm, None)
    )
    record_scan("IndRNN", (T, B, H), plan)
    wanted = ctx.needs_input_grad[:3]
    if plan.algorithm == "linear" and not torch.is_grad_enabled():
        if grad_output is not None and grad_output.stride(-1) != 1:
            # Not contiguous(), which leaves an empty tensor's strides as they are.
            grad_output = grad_output.clone(memory_format=torch.contiguous_format)
        gradients: Sequence[Tensor] = _run_backward(
            grad_output,
            None if grad_h_n is None else grad_h_n.contiguous(),
            output,
            h0,
            u,
            ctx.nonlinearity,
            ctx.reverse,
            bit_mask(tuple(wanted[1:])),
        )
    else:
        gradients = _scanned(ctx, output, h0, u, (grad_output, grad_h_n))
    return (*only(wanted, gradients), None, None, None)


def _scanned(
    ctx: Any,
    output: Tensor,
    h0: Tensor | None,
    u: Tensor,
    cotangents: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, h0 and u by a scan, as functions of everything that they depend on."""
    direct, last = cotangents
    h, grad = output, torch.zeros_like(output) if direct is None else direct
    if ctx.reverse:
        h, grad = h.flip(0), grad.flip(0)
    if last is not None:
        grad = torch.cat([grad[:-1], grad[-1:] + last])
    relu = ctx.nonlinearity == "relu"
    dead = h <= 0  # a NaN is not
    slope = torch.where(dead, 0.0, 1.0).to(h) if relu else 1 - h * h
    g = diagonal_scan((slope * u)[1:], grad, ctx.algorithm)
    # For relu a choice, not a product, as in torch: 0 * inf would make a NaN.
    d = g.masked_fill(dead, 0) if relu else slope * g
    first = torch.zeros_like(h[:1]) if h0 is None else h0.unsqueeze(0)
    grad_u = (d * torch.cat([first, h[:-1]])).sum((0, 1))
    return d.flip(0) if ctx.reverse else d, u * d[0], grad_u


_forward = torch.ops.bppsa.indrnn.default
_run_backward = torch.ops.bppsa.indrnn_backward.default
_IndRnn = register_formula("indrnn", _setup, _backward)


@register_fake("indrnn")
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[1:])


@torch.library.register_fake("bppsa::indrnn_backward")
def _(
    grad_output: Tensor | None, grad_h_n: Tensor | None, output: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    (_, B, H), wanted = output.shape, others[-1]
    shapes = output.shape, (B if wanted & 1 else 0, H), (H if wanted & 2 else 0,)
    grad_x, grad_h0, grad_u = map(output.new_empty, shapes)
    return grad_x, grad_h0, grad_u
