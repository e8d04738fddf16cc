"""reverse_scan: the operator over a chain whose transposed Jacobians are given.

T steps, B batch, H state. The formula of a scan operator is written in terms of the operator
itself, so derivatives of any order exist: the vector-Jacobian product of a scan is a scan in the
other direction of time.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from bppsa_lightning import planner
from bppsa_lightning._context import is_transformed
from bppsa_lightning.ops._checks import check_scan
from bppsa_lightning.ops._scan_transforms import scan_function
from bppsa_lightning.ops.reverse_scan_over_ranks import scan_over_ranks

_library = torch.library.Library("bppsa", "FRAGMENT")  # must live as long as what it registered

# Jacobians, grad, algorithm, levels, adjoint (whether time runs forwards).
Scan = Callable[[Tensor, Tensor, str, int | None, bool], Tensor]


def scan_operator(
    name: str, cell: str, argument: str, dims: str, outer: Callable[[Tensor, Tensor], Tensor]
) -> Scan:
    """Registers the rest of a scan operator of csrc; returns it with checks and planning.

    Args:
        name: of the operator.
        cell: for the planner.
        argument: the name of the Jacobians; dims: their dimensions.
        outer: of two vectors (…, H), where the Jacobians have entries.
    """
    operator = getattr(torch.ops.bppsa, name).default
    function = scan_function(operator, outer)

    def planned(
        jacobians: Tensor, grad: Tensor, algorithm: str, levels: int | None, adjoint: bool
    ) -> Tensor:
        check_scan(argument, jacobians, dims, grad)
        T, B, H = map(int, jacobians.shape[:3])
        plan = planner.plan(planner.Request(cell, T, B, H, grad.device, algorithm, levels))
        run = function.apply if is_transformed() else operator
        return run(jacobians, grad, plan.algorithm, plan.chunk, plan.levels, adjoint)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        jacobians, _, *ctx.plan, ctx.adjoint = inputs  # or, in a graph, what is asked of the plan
        ctx.save_for_backward(jacobians, output if ctx.needs_input_grad[0] else None)

    def register(name: str, run: Callable[..., Tensor], fake: Callable[..., Tensor]) -> None:
        def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
            jacobians, g = ctx.saved_tensors
            v = run(jacobians, cotangent, *ctx.plan, not ctx.adjoint)
            grad_jacobians = None
            if ctx.needs_input_grad[0]:
                grad_jacobians = outer(*((g[:-1], v[1:]) if ctx.adjoint else (v[:-1], g[1:])))
            return (grad_jacobians, v, *[None] * len(ctx.plan), None)

        torch.library.register_fake(f"bppsa::{name}", fake)
        torch.library.register_autograd(f"bppsa::{name}", backward, setup_context=setup)

    def planned_fake(jacobians: Tensor, grad: Tensor, *_: Any) -> Tensor:
        check_scan(argument, jacobians, dims, grad)
        return grad.new_empty(grad.shape)

    register(name, operator, lambda jacobians, grad, *_: grad.new_empty(grad.shape))
    # Planning is Python, over sizes that may be symbols in a graph: there is an operator in it
    # that torch.compile does not look into, and which plans whenever it runs.
    arguments = "Tensor jacobians, Tensor grad, str algorithm, int? levels, bool adjoint"
    _library.define(f"planned_{name}({arguments}) -> Tensor")
    _library.impl(f"planned_{name}", planned, "CompositeExplicitAutograd")
    opaque = getattr(torch.ops.bppsa, f"planned_{name}").default
    register(f"planned_{name}", opaque, planned_fake)

    def scan(
        jacobians: Tensor, grad: Tensor, algorithm: str, levels: int | None, adjoint: bool
    ) -> Tensor:
        run = opaque if torch.compiler.is_compiling() else planned
        return run(jacobians, grad, algorithm, levels, adjoint)

    return scan


_scan = scan_operator(
    "reverse_scan",
    planner.DENSE,
    "jac_t",
    "(T, B, H, H)",
    lambda row, column: row.unsqueeze(-1) * column.unsqueeze(-2),
)


def reverse_scan(
    jac_t: Tensor,
    grad: Tensor,
    algorithm: str = "auto",
    levels: int | None = None,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Gradients of a chain from its transposed Jacobians: g_T = u_T, g_i = J_{i+1}ᵀ g_{i+1} + u_i.

    Args:
        jac_t: (T, B, H, H); ``jac_t[i]`` is (∂x_{i+1}/∂x_i)ᵀ. Any strides. float32, float64,
            bfloat16 or float16 (the last two are computed in float32).
        grad: (T+1, B, H); u_0 … u_T, the direct gradient of each state. Same dtype and device.
        algorithm: "auto", "linear", "chunked" or "blelloch".
        levels: up-sweep levels of "blelloch", 0 to ceil(log2(T)); None is the full tree. Given
            with "auto", it asks for "blelloch".
        group: ranks that hold the chain's parts in their order, T steps each (T may differ, and be
            0): jac_t of these, grad (T, B, H) of the states before them; the last rank's (T+1, B,
            H). "linear" passes vectors from rank to rank, all others scan over ranks, in 2 +
            ceil(log2(P - 1)) rounds of messages at most; each rank scans its own part by the
            planner's choice. All ranks call alike, and all run backward. Differentiable once.

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
    if group is None:
        return _scan(jac_t, grad, algorithm, levels, False)
    planner.check_algorithm(algorithm, levels)

    def local(jacobians: Tensor, direct: Tensor, adjoint: bool) -> Tensor:
        return _scan(jacobians, direct, "auto", None, adjoint)

    return scan_over_ranks(jac_t, grad, group, algorithm != "linear", local)
