"""The exclusive scan over ranks: what reaches each rank's end, of the maps of all ranks behind it.

Each rank's part of a chain is one affine map, from the gradient behind it to the gradient before
it: g -> A g + b. Rank r wants (M_{r+1} ∘ … ∘ M_{P-1})(g_T). By recursive doubling that takes
1 + ceil(log2(P - 1)) rounds of messages from rank to rank, where passing vectors takes P - 1.

`Maps` says how maps are sent and joined; `DenseMaps` are those of a recurrence, whose states have
one size; `depth.rank_maps` are products of sparse Jacobians.

P ranks, B samples, S numbers of state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from bppsa_lightning.ranks.exchange import Exchange

# Products of Jacobians overflow, and underflow, long before gradients do: csrc/scan/trust.h.
_LARGE = {torch.float32: 2.0**60, torch.float64: 2.0**500}
_TINY = {torch.float32: 2.0**-100, torch.float64: 2.0**-900}


class Map(NamedTuple):
    """g -> A g + b, as row vectors: g A + b.

    Attributes:
        A: (B, S, S), whose row i is what unit i of g becomes. b: (B, S).
        sound: (1,), 1 where nothing in it left the range in which arithmetic is sound, else 0.
    """

    A: Tensor
    b: Tensor
    sound: Tensor

    @classmethod
    def of(cls, A: Tensor, b: Tensor) -> Map:
        return cls(A, b, _is_sound(A, b))

    def after(self, later: Map) -> Map:
        """This map behind another one, of steps later in time: g -> self(later(g))."""
        A, b = later.A @ self.A, self(later.b)
        return Map(A, b, self.sound * later.sound * _is_sound(A, b))

    def __call__(self, g: Tensor) -> Tensor:
        return (g.unsqueeze(1) @ self.A).squeeze(1) + self.b


def _is_sound(A: Tensor, b: Tensor) -> Tensor:
    size = A.abs().amax() if A.numel() else A.new_zeros(())
    of_b = b.abs().amax() if b.numel() else b.new_zeros(())
    small = (size == 0) | (size >= _TINY[A.dtype])
    return ((size <= _LARGE[A.dtype]) & small & of_b.isfinite()).to(A.dtype).reshape(1)


M = TypeVar("M")


class Maps(Protocol[M]):
    """Maps of neighbouring ranks: of `count` ranks, from rank `first` on."""

    def sent(self, own: M) -> Sequence[Tensor]:
        """A map as tensors of one dtype."""

    def like(self, first: int, count: int) -> Sequence[Tensor]:
        """What the tensors of a map that others send look like."""

    def read(self, first: int, count: int, tensors: Sequence[Tensor]) -> M:
        """A map that was sent."""

    def joined(self, own: M, later: M) -> M:
        """A map behind that of the ranks that follow."""

    def reached(self, own: M) -> tuple[Tensor, bool]:
        """What leaves a map that ends with the last rank; and whether it may be believed."""


class DenseMaps:
    """Of states of one size: `Map`, all like this rank's."""

    def __init__(self, own: Map) -> None:
        self._own = own

    def sent(self, own: Map) -> Sequence[Tensor]:
        return own

    def like(self, first: int, count: int) -> Sequence[Tensor]:
        return self._own

    def read(self, first: int, count: int, tensors: Sequence[Tensor]) -> Map:
        return Map(*tensors)

    def joined(self, own: Map, later: Map) -> Map:
        return own.after(later)

    def reached(self, own: Map) -> tuple[Tensor, bool]:
        return own.b, bool(own.sound)


def reaches(exchange: Exchange, maps: Maps[M], own: M | None) -> M | None:
    """The map of all ranks behind this one; None for the last.

    Args:
        own: this rank's map. The last rank's takes what is behind the whole sequence, and so is
            known to be a vector; the first rank's is not read.
    """
    last, r = exchange.size - 1, exchange.rank
    got = exchange.pass_on(
        maps.sent(own) if r > 0 and own is not None else None,
        maps.like(r + 1, 1) if r < last else None, -1,
    )  # fmt: skip
    if got is None:
        return None
    behind, ahead = maps.read(r + 1, 1, got), 1  # of the `ahead` ranks behind, or all there are
    while ahead < last:
        then = r + ahead + 1, min(ahead, last - r - ahead)
        got = exchange.pass_on(
            maps.sent(behind) if r >= ahead else None,
            maps.like(*then) if r + ahead < last else None, -ahead,
        )  # fmt: skip
        if got is not None:
            behind = maps.joined(behind, maps.read(*then, got))
        ahead *= 2
    return behind


# What reaches the end of a rank's span -> whatever the caller makes of it, and what leaves it.
Pull = Callable[[Tensor], tuple[Any, Tensor]]


def carry(
    exchange: Exchange, maps: Maps[M], own: M | None, nothing: Tensor, pull: Pull
) -> tuple[Any, Tensor]:
    """What a rank makes of what reaches it, by the maps of all ranks; and that itself.

    Where maps may not be believed, vectors are passed on instead, by those who were asked to.

    Args:
        nothing: zeros, like what reaches this rank.
    """
    later = reaches(exchange, maps, own)
    behind, sound = (nothing, True) if later is None else maps.reached(later)
    one = nothing.new_zeros(1)
    asked = exchange.pass_on([one + float(not sound)], [one])
    if not sound:
        [behind] = exchange.pass_on(None, [nothing], -1) or [behind]
    found, left = pull(behind)
    if asked is not None and bool(asked[0]):
        exchange.pass_on([left], None, -1)
    return found, behind


def relay(exchange: Exchange, nothing: Tensor, pull: Pull) -> tuple[Any, Tensor]:
    """The same, with vectors passed from rank to rank."""
    behind = nothing
    if not exchange.is_last:
        [behind] = exchange.pass_on(None, [nothing], -1) or [nothing]
    found, left = pull(behind)
    if not exchange.is_first:
        exchange.pass_on([left], None, -1)
    return found, behind
