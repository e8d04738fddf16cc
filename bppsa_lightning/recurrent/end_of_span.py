"""The end of a rank's span, which the next rank warms up on: sent with what is sent anyway.

Every divided call begins with a message of all ranks, that they have come for the same. Where the
last call warmed up for few steps, those of this one go with it, and need no message of their own.

T steps of this rank, B samples, I inputs, P ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa_lightning.divided import Way
from bppsa_lightning.ranks import Exchange

# Bytes; every rank is sent those of all ranks.
_ROOM = 1 << 13


class EndOfSpan:
    """Of the first layer's input, from call to call; all ranks know the same of it."""

    def __init__(self) -> None:
        self._expected: tuple[int, int, int, torch.dtype] | None = None  # steps, B, I

    def agreed(
        self, exchange: Exchange, brought: Sequence[int], what: Sequence[str], x: Tensor
    ) -> tuple[list[list[int]], Tensor | None]:
        """As `Exchange.agree`; and the steps before this rank's span, (steps, B, I), if sent.

        Args:
            brought: the last number is 0; it is 1 in the others' if they send the end of x.
            x: (T, B, I).
        """
        if self._expected is None:
            return exchange.agree(brought, what, x.device)[0], None
        steps, *sizes, dtype = self._expected
        fits = len(x) >= steps and [*x.shape[1:]] == sizes and x.dtype == dtype
        if fits:
            end = x.detach()[len(x) - steps :].contiguous()
        else:
            end = torch.zeros(steps, *sizes, dtype=dtype, device=x.device)
        in_bytes = end.view(-1).view(torch.uint8)
        found, of_all = exchange.agree([*brought[:-1], int(fits)], what, x.device, in_bytes)
        if of_all is None or not all(numbers[-1] for numbers in found):
            return found, None
        return found, of_all[exchange.rank - 1].view(dtype).view(steps, *sizes)

    def used(self, way: Way, x: Tensor, before: Tensor | None) -> Tensor | None:
        """What was sent, if it is what this way takes; and notes what the next call will take."""
        size = way.warm * x[:1].numel() * x.element_size()
        expected = (way.warm, x.shape[1], x.shape[2], x.dtype)
        was, self._expected = self._expected, None
        if way.forward == "meet" and 0 < size <= _ROOM:
            self._expected = expected
        return before if was == expected == self._expected else None
