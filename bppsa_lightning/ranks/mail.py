"""Small tensors of a CPU, gathered over the ranks of a process group by messages between them.

Gloo sends at once what its receiver waits for; otherwise the sender first has to be told that the
receiver does, which takes as long again. So receives are always under way, two gatherings ahead: a
rank may end as soon as it has what all have sent, and what it sent last has to find its receive
begun. A gathering sends before it begins further ones, as the others wait for what it sends.

P ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from ctypes import c_int64, memmove
from functools import partial
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from bppsa_lightning._gloo import give_way

# Bytes of each rank; what is longer is left to gloo's own gathering.
SMALL = 1 << 16

# Of these messages alone: what else is sent has others, and does not end up here.
_TAG = 0x62707073

_HEAD = 8  # bytes, which say how many follow

_Rows = Sequence[tuple[int, int]]  # of each tensor: the address of rank 0's, bytes of each rank's


class _Round(NamedTuple):
    """What so many ranks have, from this one on, goes to a place of the group.

    As much comes from another one, of as many ranks, from the `known`-th after this one on.
    """

    ranks: int
    to: int
    known: int
    source: int


class Mail:
    """Of one process group, whose ranks all gather the same in the same order.

    Args:
        size: P. place: this rank's, in the group.
    """

    def __init__(self, size: int, place: int) -> None:
        self._size, self._place = size, place
        self._rounds = {backwards: self._planned(backwards) for backwards in (False, True)}
        most = max([0, *(round.ranks for round in self._rounds[False])]) * SMALL
        sources = {round.source for rounds in self._rounds.values() for round in rounds}
        self._boxes = {source: _Box(source, most) for source in sources}
        self._out, self._sent = _room(most), cast(Any, None)

    def _planned(self, backwards: bool) -> list[_Round]:
        """ceil(log2 P) rounds (J. Bruck et al., 1997)."""
        rounds, known, towards = [], 1, -1 if backwards else 1
        while known < self._size:
            count, far = min(known, self._size - known), towards * known
            to, source = (self._place - far) % self._size, (self._place + far) % self._size
            rounds.append(_Round(count, to, known, source))
            known += count
        return rounds

    def begin(
        self, group: dist.ProcessGroup, own: Sequence[Tensor], backwards: bool
    ) -> Callable[[], list[Tensor]]:
        """Sends tensors (...), each contiguous; what then gives all ranks', (P, ...), in order.

        No other is begun before that is called.
        """
        rank = self._size - 1 - self._place if backwards else self._place
        rounds = self._rounds[backwards]
        boxes = [self._boxes[round.source] for round in rounds]
        of_own = [(t.data_ptr(), t.nbytes) for t in own]
        for box in boxes:
            box.make_ready(group)
        if rounds:
            self._send(group, rounds[0], of_own)
        for box in boxes:
            box.expect(group)
        found = [t.new_empty(self._size, *t.shape) for t in own]
        rows = [(t.data_ptr(), size) for t, (_, size) in zip(found, of_own, strict=True)]
        for (at, size), (source, _) in zip(rows, of_own, strict=True):
            memmove(at + rank * size, source, size)
        return partial(self._ended, group, found, rows, rank, rounds)

    def _ended(
        self, group: dist.ProcessGroup, found: list[Tensor], rows: _Rows, rank: int,
        rounds: Sequence[_Round],
    ) -> list[Tensor]:  # fmt: skip
        for round in rounds:
            if round is not rounds[0]:
                self._send(group, round, self._pieces(rows, rank, round.ranks))
            pieces = self._pieces(rows, rank + round.known, round.ranks)
            at = self._boxes[round.source].receive(sum(size for _, size in pieces))
            for piece, size in pieces:
                memmove(piece, at, size)
                at += size
            self._sent.wait()
        return found

    def _send(self, group: dist.ProcessGroup, round: _Round, pieces: _Rows) -> None:
        start = at = self._out.data_ptr() + _HEAD
        for piece, size in pieces:
            memmove(at, piece, size)
            at += size
        _head(self._out).value = at - start
        give_way()
        # (By the group's own method, as dist.isend takes as long to look up ranks as gloo to send.)
        self._sent = group.send([self._out[: _HEAD + at - start]], round.to, _TAG)
        give_way()

    def _pieces(self, rows: _Rows, first: int, count: int) -> _Rows:
        """Where the tensors of `count` ranks lie, and their bytes."""
        ranks = [n % self._size for n in range(first, first + count)]
        return [(at + rank * size, size) for rank in ranks for at, size in rows]


class _Box:
    """For what another rank sends, in the order in which it does.

    Args:
        source: its place in the group. most: bytes.
    """

    def __init__(self, source: int, most: int) -> None:
        self._source = source
        self._rooms = [_room(most) for _ in range(3)]  # one is read while two are under way
        self._coming: deque[Any] = deque()
        self._count = 0

    def make_ready(self, group: dist.ProcessGroup) -> None:
        """For a message and the one after it."""
        while len(self._coming) < 2:
            self.expect(group)

    def expect(self, group: dist.ProcessGroup) -> None:
        """One more than are under way."""
        self._count += 1
        room = self._rooms[self._count % 3]
        wait: Callable[[], object]
        try:
            wait = group.recv([room], self._source, _TAG).wait
        except RuntimeError as error:  # the other rank is gone; it may have sent those before
            wait = partial(_raise, error)
        self._coming.append((wait, room))

    def receive(self, size: int) -> int:
        """Waits for the next one; its address, where it is until another is expected.

        Raises:
            RuntimeError: it has not as many bytes as `size`; or the other rank is gone, or late.
        """
        wait, room = self._coming.popleft()
        wait()
        if (found := _head(room).value) != size:
            raise RuntimeError(
                f"found a message of {found} bytes, wanted one of {size}: ranks are out of step"
            )
        return room.data_ptr() + _HEAD


def _raise(error: Exception) -> None:
    raise error


def _room(most: int) -> Tensor:
    """For a message. (Memory is taken as it is written to.)"""
    return torch.empty(_HEAD + most, dtype=torch.uint8)


def _head(room: Tensor) -> c_int64:
    return c_int64.from_address(room.data_ptr())


_mail: WeakKeyDictionary[dist.ProcessGroup, Mail] = WeakKeyDictionary()


def mail(group: dist.ProcessGroup) -> Mail:
    """That of a group, for all that this process divides over it."""
    if group not in _mail:
        _mail[group] = Mail(dist.get_world_size(group), dist.get_rank(group))
    return _mail[group]


def forget(group: dist.ProcessGroup) -> None:
    """Ends what a group is still to receive."""
    _mail.pop(group, None)
