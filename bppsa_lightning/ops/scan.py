"""reverse_scan: the operator over a chain whose transposed Jacobians are given.

T steps, B batch, H state. The operator's formula is written in terms of the operator itself, so
derivatives of any order exist: the vector-Jacobian product of a reverse scan is a scan in the other
direction.
"""

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import planner
from bppsa_lightning.ops._autograd import define_composite
from bppsa_lightning.ops._checks import check_scan


def reverse_scan(
    jac_t: Tensor, grad: Tensor, algorithm: str = "auto", levels: int | None = None
) -> Tensor:
    """Gradients of a chain from its transposed Jacobians: g_T = u_T, g_i = J_{i+1}ᵀ g_{i+1} + u_i.

    Args:
        jac_t: (T, B, H, H); ``jac_t[i]`` is (∂x_{i+1}/∂x_i)ᵀ. Any strides. float32, float64,
            bfloat16 or float16 (the last two are computed in float32).
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

    Source: Blelloch scan of arXiv:1907.10134, section 3, generalised to a loss that reads every
    state (u_i ≠ 0).
    """
    if torch.compiler.is_compiling():
        return torch.ops.bppsa.planned_reverse_scan(jac_t, grad, algorithm, levels)
    return _planned_reverse_scan(jac_t, grad, algorithm, levels)


def _planned_reverse_scan(
    jac_t: Tensor, grad: Tensor, algorithm: str, levels: int | None
) -> Tensor:
    check_scan("jac_t", jac_t, "(T, B, H, H)", grad)
    T, B, H = map(int, jac_t.shape[:3])
    plan = planner.plan(planner.Request(planner.DENSE, T, B, H, jac_t.device, algorithm, levels))
    return torch.ops.bppsa.reverse_scan(jac_t, grad, plan.algorithm, plan.chunk, plan.levels, False)


define_composite(
    "planned_reverse_scan(Tensor jac_t, Tensor grad, str algorithm, int? levels) -> Tensor",
    _planned_reverse_scan,
)


def _reverse_scan_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    jac_t, _, *ctx.plan, ctx.adjoint = inputs
    ctx.save_for_backward(jac_t, output)


def _reverse_scan_backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
    jac_t, g = ctx.saved_tensors
    v = torch.ops.bppsa.reverse_scan(jac_t, cotangent, *ctx.plan, not ctx.adjoint)
    grad_jac = None
    if ctx.needs_input_grad[0]:
        row, column = (g[:-1], v[1:]) if ctx.adjoint else (v[:-1], g[1:])
        grad_jac = row.unsqueeze(-1) * column.unsqueeze(-2)
    return grad_jac, v, None, None, None, None


@torch.library.register_fake("bppsa::reverse_scan")
def _(
    jac_t: Tensor, grad: Tensor, algorithm: str, chunk: int, levels: int, adjoint: bool
) -> Tensor:
    return grad.new_empty(grad.shape)


torch.library.register_autograd(
    "bppsa::reverse_scan", _reverse_scan_backward, setup_context=_reverse_scan_setup
)
