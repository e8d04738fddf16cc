"""A scan operator under torch.func, and under forward-mode differentiation.

Every derivative of a scan is a scan: its vector-Jacobian product in the other direction of time,
its tangent in the same one. A mapped dimension becomes part of the batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.ops._autograd import primals
from bppsa_lightning.ops._mapped import fold, unfold


def scan_function(
    operator: Callable[..., Tensor], outer: Callable[[Tensor, Tensor], Tensor]
) -> type[torch.autograd.Function]:
    """The Function of an operator; its arguments are the operator's.

    Args:
        operator: of (jacobians, grad, algorithm, chunk, levels, adjoint).
        outer: of two vectors (…, H), where the Jacobians have entries.
    """

    class Scan(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Tensor:
            with torch._C._AutoDispatchBelowAutograd():
                return operator(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            jacobians, _, *ctx.plan, ctx.adjoint = inputs
            ctx.save_for_backward(jacobians, output)
            ctx.save_for_forward(jacobians, output)

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
            jacobians, g = ctx.saved_tensors
            v = Scan.apply(jacobians, cotangent, *ctx.plan, not ctx.adjoint)
            grad_jacobians = None
            if ctx.needs_input_grad[0]:
                grad_jacobians = outer(*((g[:-1], v[1:]) if ctx.adjoint else (v[:-1], g[1:])))
            return grad_jacobians, v, None, None, None, None

        @staticmethod
        def jvp(ctx: Any, d_jacobians: Tensor | None, d_grad: Tensor | None, *_: None) -> Tensor:
            """Of g_i = J_{i+1}ᵀ g_{i+1} + u_i: the same scan of (dJ_{i+1})ᵀ g_{i+1} + du_i."""
            with primals(ctx.saved_tensors) as (jacobians, g):
                direct = torch.zeros_like(g) if d_grad is None else d_grad
                if d_jacobians is not None:
                    after = g[:-1] if ctx.adjoint else g[1:]
                    nothing = torch.zeros_like(g[:1])
                    added = [_applied(d_jacobians, after, ctx.adjoint), nothing]
                    direct = direct + torch.cat(added[::-1] if ctx.adjoint else added)
                result: Tensor = Scan.apply(jacobians, direct, *ctx.plan, ctx.adjoint)
            return result

        @staticmethod
        def vmap(
            info: Any, in_dims: tuple[Any, ...], jacobians: Tensor, grad: Tensor, *rest: Any
        ) -> tuple[Tensor, int]:
            V = info.batch_size
            folded = (
                fold(t, dim, V, 1) for t, dim in zip((jacobians, grad), in_dims, strict=False)
            )
            return unfold(Scan.apply(*folded, *rest), V, 1), 1

    return Scan


def _applied(jacobians: Tensor, vectors: Tensor, transposed: bool) -> Tensor:
    """Jacobians (T, B, H, H), or diagonals (T, B, H), times vectors (T, B, H)."""
    if jacobians.dim() == vectors.dim():
        return jacobians * vectors
    matrices = jacobians.transpose(-1, -2) if transposed else jacobians
    return (matrices @ vectors.unsqueeze(-1)).squeeze(-1)
