"""The exclusive scan over ranks: what reaches each rank's end, of the maps of all ranks behind it.

Each rank's span is one affine map, from the gradient behind it to the gradient before it:
g -> A g + b. Rank r wants (M_{r+1} ∘ … ∘ M_{P-1})(g_T). By recursive doubling that takes
1 + ceil(log2(P - 1)) rounds of messages from rank to rank, where passing vectors takes P - 1.

P ranks, B samples, S numbers of state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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


def reaches(exchange: Exchange, own: Map) -> tuple[Tensor, bool]:
    """The gradient that reaches the end of this rank's span, (B, S), from all ranks behind it.

    Args:
        own: this rank's map. The last rank's has the gradient behind the whole sequence in its b
            already, and zeros for A; the first rank's is not read.

    Returns:
        The gradient, zeros for the last rank; and whether it may be believed: a rank that may not
        believe it waits for what the rank behind finds.
    """
    last, r = exchange.size - 1, exchange.rank
    got = exchange.pass_on(own if r > 0 else None, own if r < last else None, -1)
    behind = None if got is None else Map(*got)  # of the `ahead` ranks behind, or all there are
    ahead = 1
    while ahead < last:
        sent = behind if r >= ahead else None
        got = exchange.pass_on(sent, own if r + ahead < last else None, -ahead)
        if got is not None and behind is not None:
            behind = behind.after(Map(*got))
        ahead *= 2
    if behind is None:
        return torch.zeros_like(own.b), True
    return behind.b, bool(behind.sound)


# What reaches the end of a rank's span -> whatever the caller makes of it, and what leaves it.
Pull = Callable[[Tensor], tuple[Any, Tensor]]


def carry(exchange: Exchange, own: Map, pull: Pull) -> tuple[Any, Tensor]:
    """What a rank makes of what reaches it, by the maps of all ranks; and that itself.

    Where maps may not be believed, vectors are passed on instead, by those who were asked to.
    """
    behind, sound = reaches(exchange, own)
    one = own.b.new_zeros(1)
    asked = exchange.pass_on([one + float(not sound)], [one])
    if not sound:
        [behind] = exchange.pass_on(None, [own.b], -1) or [behind]
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
