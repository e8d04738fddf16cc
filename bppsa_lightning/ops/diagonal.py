"""Diagonal chains: elementwise recurrences, as those of IndRNN, minGRU and diagonal SSMs.

T steps, B batch, H state. One operator runs in both directions of time: backwards it is the
back-propagation of a chain, forwards the recurrence itself; each is the vector-Jacobian product of
the other, so derivatives of any order exist.
"""

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import planner
from bppsa_lightning.ops._autograd import define_composite
from bppsa_lightning.ops._checks import (
    ALL_FLOATS,
    check_like,
    check_scan,
    check_tensor,
    wrong_shape,
)


def diagonal_scan(
    decay: Tensor, grad: Tensor, algorithm: str = "auto", levels: int | None = None
) -> Tensor:
    """Gradients of a chain with diagonal Jacobians: g_T = u_T, g_i = decay_i * g_{i+1} + u_i.

    Args:
        decay: (T, B, H); ``decay[i]`` is the diagonal of ∂x_{i+1}/∂x_i. Any strides. float32,
            float64, bfloat16 or float16 (the last two are computed in float32).
        grad: (T+1, B, H); u_0 … u_T, the direct gradient of each state. Same dtype and device.
        algorithm: "auto", "linear", "chunked" or "blelloch".
        levels: up-sweep levels of "blelloch", 0 to ceil(log2(T)); None is the full tree. Given
            with "auto", it asks for "blelloch".

    Returns:
        g (T+1, B, H), contiguous, of grad's dtype. Differentiable in both arguments, any number
        of times.

    Raises:
        TypeError: an argument is not a tensor, or of another dtype.
        ValueError: shapes, devices, algorithm or levels do not fit.
        RuntimeError: CUDA tensors, and the CUDA kernels were not built.

    What `reverse_scan` computes of ``torch.diag_embed(decay)``, with H numbers a step instead of
    H². For the forward recurrence see `linear_recurrence`.
    """
    return _scan(decay, grad, algorithm, levels, False)


def linear_recurrence(
    decay: Tensor, x: Tensor, initial: Tensor | None = None, algorithm: str = "auto"
) -> Tensor:
    """States of an elementwise linear recurrence: h_t = decay_t * h_{t-1} + x_t.

    Args:
        decay: (T, B, H), or what broadcasts to it: (H,) for a recurrence that does not change.
            Any strides. dtypes as in `diagonal_scan`.
        x: (T, B, H), T >= 1. Same dtype and device. Of batch-first data, pass
            ``x.transpose(0, 1)``.
        initial: (B, H), h_0; None is zeros.
        algorithm: of the scan, forward and backward; see `diagonal_scan`.

    Returns:
        h_1 … h_T (T, B, H), contiguous. Exact, and differentiable in all arguments, any number of
        times: the backward is `diagonal_scan`.

    Raises:
        TypeError, ValueError, RuntimeError: as `diagonal_scan`.
    """
    _check_linear_recurrence(decay, x, initial)
    decay = decay.expand(x.shape)
    if initial is not None:
        x = torch.cat([torch.addcmul(x[:1], decay[:1], initial), x[1:]])
    return _scan(decay[1:], x, algorithm, None, True)


def _scan(decay: Tensor, grad: Tensor, algorithm: str, levels: int | None, adjoint: bool) -> Tensor:
    if torch.compiler.is_compiling():
        return torch.ops.bppsa.planned_diagonal_scan(decay, grad, algorithm, levels, adjoint)
    return _planned_diagonal_scan(decay, grad, algorithm, levels, adjoint)


def _planned_diagonal_scan(
    decay: Tensor, grad: Tensor, algorithm: str, levels: int | None, adjoint: bool
) -> Tensor:
    check_scan("decay", decay, "(T, B, H)", grad)
    T, B, H = map(int, decay.shape)
    request = planner.Request(planner.DIAGONAL, T, B, H, decay.device, algorithm, levels)
    plan = planner.plan(request)
    return torch.ops.bppsa.diagonal_scan(
        decay, grad, plan.algorithm, plan.chunk, plan.levels, adjoint
    )


define_composite(
    "planned_diagonal_scan(Tensor decay, Tensor grad, str algorithm, int? levels, bool adjoint)"
    " -> Tensor",
    _planned_diagonal_scan,
)


def _check_linear_recurrence(decay: Tensor, x: Tensor, initial: Tensor | None) -> None:
    check_tensor("decay", decay, ALL_FLOATS)
    check_tensor("x", x, ALL_FLOATS)
    if x.dim() != 3 or x.shape[0] < 1 or x.shape[2] < 1:
        raise wrong_shape("x", x, "(T, B, H) with T >= 1 and H >= 1")
    fits = decay.dim() <= 3 and all(
        n in (1, wanted) for n, wanted in zip(decay.shape[::-1], x.shape[::-1], strict=False)
    )
    if not fits:
        raise wrong_shape("decay", decay, f"x's {tuple(x.shape)} or what broadcasts to it")
    check_like("decay", decay, "x", x)
    if initial is None:
        return
    check_tensor("initial", initial, ALL_FLOATS)
    if initial.shape != x.shape[1:]:
        raise wrong_shape("initial", initial, f"(B, H) = {tuple(x.shape[1:])}")
    check_like("initial", initial, "x", x)


def _diagonal_scan_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    decay, _, *ctx.plan, ctx.adjoint = inputs
    ctx.save_for_backward(decay, output if ctx.needs_input_grad[0] else None)


def _diagonal_scan_backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
    decay, g = ctx.saved_tensors
    v = torch.ops.bppsa.diagonal_scan(decay, cotangent, *ctx.plan, not ctx.adjoint)
    grad_decay = None
    if ctx.needs_input_grad[0]:
        grad_decay = g[:-1] * v[1:] if ctx.adjoint else v[:-1] * g[1:]
    return grad_decay, v, None, None, None, None


@torch.library.register_fake("bppsa::diagonal_scan")
def _(
    decay: Tensor, grad: Tensor, algorithm: str, chunk: int, levels: int, adjoint: bool
) -> Tensor:
    return grad.new_empty(grad.shape)


torch.library.register_autograd(
    "bppsa::diagonal_scan", _diagonal_scan_backward, setup_context=_diagonal_scan_setup
)
