"""The beginning of a call over ranks: a message of all, that they have come for the same.

With it goes the end of a rank's span, where the last call warmed up on so few steps of it that they
need no message of their own.

T steps of this rank, B samples, F features, P ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bppsa_lightning.divided import Way
from bppsa_lightning.ranks import Exchange
from bppsa_lightning.recurrent import packed_span

# Bytes; every rank is sent those of all ranks.
_ROOM = 1 << 13

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_BROUGHT = (
    "",
    "packed input",
    "the number of the call",
    "its batch",
    "its features",
    "its dtype",
    "whether gradients are wanted",
    "its algorithm",
    "its steps in all",
    "the state of its random numbers (a hash)",
    *packed_span.TOLD,
    "",
)


class Told(NamedTuple):
    """By all ranks.

    Attributes:
        numbers: of each, as `_BROUGHT` names them; the first is T.
        before: the steps before this rank's span, (steps, B, F), if they were sent.
    """

    numbers: list[list[int]]
    before: Tensor | None


class Beginning:
    """Of all calls of a layer; all ranks know the same of the end of spans.

    Args:
        sharded: whether each rank is given its own span alone. alike: whether all that draws
            random numbers draws the same in all ranks.
    """

    def __init__(self, sharded: bool, alike: bool) -> None:
        self._sharded, self._alike = sharded, alike and not sharded
        self._expected: tuple[int, int, int, torch.dtype] | None = None  # steps, B, F

    def begin(
        self, exchange: Exchange, call: int, x: Tensor, algorithm: str,
        packed: tuple[int, int, int] | None,
    ) -> Callable[[], Told]:  # fmt: skip
        """Tells the others what this rank has come for; what then waits until all have told.

        Args:
            call: its number. x: (T, B, F). packed: what is told of packed steps.
        """
        T, B, F = x.shape
        own = [
            T, int(packed is not None), call, B, F, _DTYPES.index(x.dtype),
            int(torch.is_grad_enabled()), _hash(algorithm), 0 if self._sharded else T,
            _randomness(x) if self._alike else 0, *(packed or packed_span.OF_DENSE),
        ]  # fmt: skip
        if self._expected is None:
            return partial(_told, exchange.begin_agree([*own, 0], _BROUGHT, x.device), 0)
        steps, *sizes, dtype = self._expected
        fits = steps <= T and sizes == [B, F] and x.dtype == dtype
        end = x.detach()[T - steps :] if fits else x.new_zeros(steps, *sizes, dtype=dtype)
        agreed = exchange.begin_agree([*own, int(fits)], _BROUGHT, x.device, end)
        return partial(_told, agreed, exchange.rank - 1)

    def used(self, way: Way, x: Tensor, before: Tensor | None) -> Tensor | None:
        """What was sent, if it is what this way takes; and notes what the next call will take."""
        size = way.warm * x.shape[1] * x.shape[2] * x.element_size()
        expected = (way.warm, x.shape[1], x.shape[2], x.dtype)
        was, self._expected = self._expected, None
        if way.forward == "meet" and 0 < size <= _ROOM:
            self._expected = expected
        return before if was == expected == self._expected else None


def _told(agreed: Callable[[], tuple[list[list[int]], Sequence[Tensor]]], rank_before: int) -> Told:
    numbers, ends = agreed()
    sent = ends and all(of_rank[-1] for of_rank in numbers)
    return Told(numbers, ends[0][rank_before] if sent else None)


def _randomness(x: Tensor) -> int:
    """Of the generators, where ranks must draw alike."""
    states = [torch.get_rng_state()]
    if x.is_cuda and not torch.cuda.is_current_stream_capturing():
        states.append(torch.cuda.get_rng_state(x.device))
    return sum(zlib.crc32(state.numpy().tobytes()) for state in states)


def _hash(algorithm: str) -> int:
    """The same in every process."""
    return int.from_bytes(algorithm.encode()[:7], "big")
