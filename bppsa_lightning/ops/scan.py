"""reverse_scan: the operator over a chain whose transposed Jacobians are given.

T steps, B batch, H state. The operator's formula is written in terms of the operator itself, so
derivatives of any order exist: the vector-Jacobian product of a reverse scan is a scan in the other
direction.
"""

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import planner
from bppsa_lightning._library import HAS_CUDA_KERNELS, NO_CUDA_KERNELS

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


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
    _check_reverse_scan(jac_t, grad)
    T, B, H = jac_t.shape[:3]
    plan = planner.choose(T, B, H, jac_t.device, algorithm, levels)
    return torch.ops.bppsa.reverse_scan(jac_t, grad, plan.algorithm, plan.chunk, plan.levels, False)


# Planning is Python, over sizes that torch.compile may hold as symbols: as an operator of its own
# it is taken apart where they have values. The handle must live as long as the registration.
_library = torch.library.Library("bppsa", "FRAGMENT")
_library.define(
    "planned_reverse_scan(Tensor jac_t, Tensor grad, str algorithm, int? levels) -> Tensor"
)
_library.impl("planned_reverse_scan", _planned_reverse_scan, "CompositeImplicitAutograd")


def _check_reverse_scan(jac_t: Tensor, grad: Tensor) -> None:
    for name, tensor in (("jac_t", jac_t), ("grad", grad)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: found {type(tensor).__name__}, wanted a torch.Tensor")
        if tensor.layout != torch.strided:
            raise TypeError(f"{name}: found layout {tensor.layout}, wanted a dense tensor")
        if tensor.dtype not in DTYPES:
            raise TypeError(
                f"{name}: found dtype {tensor.dtype}, wanted float32, float64, bfloat16 or float16"
            )
    if jac_t.dim() != 4 or jac_t.shape[2] != jac_t.shape[3] or jac_t.shape[2] < 1:
        raise ValueError(
            f"jac_t: found shape {tuple(jac_t.shape)}, wanted (T, B, H, H) with H >= 1"
        )
    T, B, H = jac_t.shape[:3]
    if tuple(grad.shape) != (T + 1, B, H):
        raise ValueError(
            f"grad: found shape {tuple(grad.shape)}, wanted (T+1, B, H) = {(T + 1, B, H)} "
            f"for jac_t of shape {tuple(jac_t.shape)}"
        )
    if grad.dtype != jac_t.dtype:
        raise TypeError(f"grad: found dtype {grad.dtype}, wanted jac_t's {jac_t.dtype}")
    if grad.device != jac_t.device:
        raise ValueError(f"grad: found on {grad.device}, wanted on jac_t's {jac_t.device}")
    if jac_t.is_cuda and not HAS_CUDA_KERNELS:
        raise RuntimeError(f"jac_t: found on a CUDA device, but {NO_CUDA_KERNELS}")


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
