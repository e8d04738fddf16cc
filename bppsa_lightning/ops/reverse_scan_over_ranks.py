"""`reverse_scan` of a chain that lies on many ranks, each with its own steps.

T steps of this rank, B batch, H state. A rank holds the Jacobians of its steps and the states
before them; the last one the state behind them, too. The derivative of a scan over ranks is a scan
over ranks in the other direction of time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from bppsa_lightning.ops._autograd import once_differentiable
from bppsa_lightning.ops._checks import ALL_FLOATS, FLOATS, check_like, check_tensor, wrong_shape
from bppsa_lightning.ranks import DenseMaps, Exchange, Map, carry, relay

# Jacobians, direct gradients, whether time runs forwards -> gradients: of one rank.
LocalScan = Callable[[Tensor, Tensor, bool], Tensor]


def scan_over_ranks(
    jac_t: Tensor, grad: Tensor, group: ProcessGroup, composes: bool, scan: LocalScan
) -> Tensor:
    """The gradients of this rank's states.

    Args:
        jac_t: (T, B, H, H), T >= 0. grad: (T, B, H); of the last rank (T+1, B, H).
        composes: whether maps are scanned; else vectors are passed from rank to rank.
        scan: of what one rank has.
    """
    exchange = Exchange(group, "reverse_scan")
    check_tensor("jac_t", jac_t, ALL_FLOATS)
    check_tensor("grad", grad, ALL_FLOATS)
    check_like("grad", grad, "jac_t", jac_t)
    if jac_t.dim() != 4 or jac_t.shape[2] < 1 or jac_t.shape[2] != jac_t.shape[3]:
        raise wrong_shape("jac_t", jac_t, "(T, B, H, H) with H >= 1")
    T, B, H = jac_t.shape[:3]
    wanted = (T + exchange.is_last, B, H)
    if grad.shape != wanted:
        raise wrong_shape("grad", grad, f"{wanted} on rank {exchange.rank} of {exchange.size}")
    if grad.dtype not in FLOATS:  # as in one process, computed in float32
        wide = scan_over_ranks(jac_t.float(), grad.float(), group, composes, scan)
        return wide.to(grad.dtype)
    names = "its batch", "its state", "its dtype", "its algorithm"
    dtype = FLOATS.index(grad.dtype)
    exchange.agree([B, H, dtype, int(composes)], names, grad.device)
    return _OverRanks.apply(jac_t, grad, exchange, composes, scan)


class _OverRanks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, jac_t: Tensor, grad: Tensor, exchange: Exchange, composes: bool, scan: LocalScan
    ) -> Tensor:
        g, behind = _reverse(exchange, composes, scan, jac_t, grad)
        ctx.exchange, ctx.composes, ctx.scan = exchange, composes, scan
        ctx.save_for_backward(jac_t, g, behind)
        return g

    @staticmethod
    @once_differentiable("a scan over ranks")
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        jac_t, g, behind = ctx.saved_tensors
        v = _adjoint(ctx.exchange.towards(True), ctx.composes, ctx.scan, jac_t, cotangent)
        grad_jacobians = None
        if ctx.needs_input_grad[0]:
            after = g if ctx.exchange.is_last else torch.cat([g, behind.unsqueeze(0)])
            grad_jacobians = v[: len(jac_t)].unsqueeze(-1) * after[1:].unsqueeze(-2)
        return grad_jacobians, v, None, None, None


def _reverse(
    exchange: Exchange, composes: bool, scan: LocalScan, jac_t: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of this rank's states, and of the next rank's first one."""
    nothing = u.new_zeros(u.shape[1:])

    def walk(behind: Tensor) -> Tensor:
        return scan(jac_t, u if exchange.is_last else torch.cat([u, behind.unsqueeze(0)]), False)

    def product() -> Tensor:
        return _product(jac_t).transpose(-1, -2)

    g, behind = _carried(exchange, composes, walk, product, lambda g: g[0], nothing)
    return g if exchange.is_last else g[:-1], behind


def _adjoint(
    exchange: Exchange, composes: bool, scan: LocalScan, jac_t: Tensor, v: Tensor
) -> Tensor:
    """w_0 = v_0, w_{i+1} = J_{i+1} w_i + v_{i+1}, of this rank's states.

    Args:
        exchange: in which the rank with the last state is the first.
    """
    nothing, ends = v.new_zeros(v.shape[1:]), exchange.is_first

    def walk(behind: Tensor) -> Tensor:
        direct = v if ends else torch.cat([v, nothing.unsqueeze(0)])
        return scan(jac_t, torch.cat([(direct[0] + behind).unsqueeze(0), direct[1:]]), True)

    w, _ = _carried(exchange, composes, walk, lambda: _product(jac_t), lambda w: w[-1], nothing)
    return w if ends else w[:-1]


def _carried(
    exchange: Exchange,
    composes: bool,
    walk: Callable[[Tensor], Tensor],
    product: Callable[[], Tensor],
    leaves: Callable[[Tensor], Tensor],
    nothing: Tensor,
) -> tuple[Tensor, Tensor]:
    """A walk of this rank, and what was carried into it from the rank behind."""

    def pull(behind: Tensor) -> tuple[Tensor, Tensor]:
        found = walk(behind)
        return found, leaves(found)

    if not composes:
        return relay(exchange, nothing, pull)
    b = nothing if exchange.is_first else leaves(walk(nothing))
    inner = not exchange.is_first and not exchange.is_last
    B, H = nothing.shape
    own = Map.of(product() if inner else nothing.new_zeros(B, H, H), b)
    return carry(exchange, DenseMaps(own), own, nothing, pull)


def _product(jac_t: Tensor) -> Tensor:
    """jac_t[0] @ … @ jac_t[T - 1], (B, H, H), by pairs."""
    T, B, H, _ = jac_t.shape
    if not T:
        return torch.eye(H, dtype=jac_t.dtype, device=jac_t.device).expand(B, H, H)
    while len(jac_t) > 1:
        even = len(jac_t) // 2 * 2
        pairs = jac_t[0:even:2] @ jac_t[1:even:2]
        jac_t = torch.cat([pairs, jac_t[even:]])
    return jac_t[0]
