"""What goes between the ranks of a chain: point to point in rounds, counted, over a process group.

P ranks.
"""

from __future__ import annotations

import atexit
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from bppsa_lightning._gloo import give_way, let_threads_wait
from bppsa_lightning.ranks.mail import SMALL, forget, mail


@dataclass
class Counts:
    """Of one rank: what it has sent and waited for.

    Attributes:
        rounds: of messages from rank to rank, one after another. messages, bytes: sent in them.
        collectives: calls of all ranks together (headers, outputs, sums of gradients).
    """

    rounds: int = 0
    messages: int = 0
    bytes: int = 0
    collectives: int = 0


class Exchange:
    """A rank's place in its chain, and the way to the others.

    Args:
        group: a process group; its ranks hold the spans of time in their order.
        name: of what is divided, for errors.
        backwards: whether time runs from the last rank to the first.

    Attributes:
        size: P. rank: this one's place, in the direction of time.
        counts: shared by both directions.
    """

    def __init__(self, group: dist.ProcessGroup, name: str = "", backwards: bool = False) -> None:
        self.group, self.name, self._backwards = group, name, backwards
        self.size = dist.get_world_size(group)
        own = dist.get_rank(group)
        self.rank = self.size - 1 - own if backwards else own
        self.counts = Counts()
        let_threads_wait(group)
        self._has_mail = "cpu:gloo" in str(dist.get_backend_config(group))
        self._process = os.getpid()
        _in_use.add(self)

    def towards(self, backwards: bool) -> Exchange:
        """The same ranks, with time running in a direction."""
        if backwards == self._backwards:
            return self
        other = Exchange(self.group, self.name, backwards)
        other.counts = self.counts
        return other

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    def pass_on(
        self, sent: Sequence[Tensor] | None, like: Sequence[Tensor] | None, ahead: int = 1
    ) -> list[Tensor] | None:
        """One round: sends to the rank `ahead` places later in time, receives from as far before.

        Args:
            sent: tensors of one dtype; None to send nothing.
            like: tensors whose shapes and dtypes those of the other rank have; None to receive
                nothing. Who sends and who receives is known to both.
            ahead: negative for earlier ranks.

        Returns:
            What was received. Nothing is sent or received beyond the ends of the chain.

        Raises:
            RuntimeError: the other rank is gone, or late, or sends something else.
        """
        to, source = self.rank + ahead, self.rank - ahead
        operations, received = [], None
        if sent is not None and 0 <= to < self.size and (message := packed(sent)).numel():
            operations.append(dist.P2POp(dist.isend, message, self._peer(to), self.group))
            self.counts.messages += 1
            self.counts.bytes += message.nbytes
        if like is not None and 0 <= source < self.size:
            received = _room(like)
            if received.numel():
                peer = self._peer(source)
                operations.append(dist.P2POp(dist.irecv, received, peer, self.group))
        self.counts.rounds += 1
        if operations:
            others = [r for r in (to, source) if 0 <= r < self.size]
            with self._named(f"a message with rank {' or '.join(map(self._shown, others))}"):
                works = dist.batch_isend_irecv(operations)
                give_way()
                for work in works:
                    work.wait()
        return None if received is None or like is None else unpacked(received, like)

    def gather(self, *tensors: Tensor) -> list[Tensor]:
        """Of tensors (...) that all ranks have alike, all ranks', (P, ...), in time's direction."""
        return self.begin_gather(*tensors)()

    def begin_gather(self, *tensors: Tensor) -> Callable[[], list[Tensor]]:
        """A `gather` that is waited for later, by calling what is returned; no other before that.

        On a CPU, what is small is sent at once.
        """
        self.counts.collectives += 1
        tensors = tuple(_plain(t) for t in tensors)
        small = 0 < sum(t.nbytes for t in tensors) <= SMALL and all(t.is_cpu for t in tensors)
        if small and self._has_mail:
            with self._named(_GATHERING):
                begun = mail(self.group).begin(self.group, tensors, self._backwards)
            return partial(self._ended, begun)
        return partial(self._gathered, tensors)

    def _ended(self, begun: Callable[[], list[Tensor]]) -> list[Tensor]:
        with self._named(_GATHERING):
            return begun()

    def _gathered(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """By the process group's own."""
        if len(tensors) > 1:
            own = torch.cat([t.view(-1).view(torch.uint8) for t in tensors])
            parts = self._gathered([own])[0].split([t.nbytes for t in tensors], 1)
            return [
                part.clone().view(-1).view(t.dtype).view(self.size, *t.shape)
                for part, t in zip(parts, tensors, strict=True)
            ]
        [own] = tensors
        all_of_them = own.new_empty(self.size, *own.shape)
        if own.numel():
            with self._named(_GATHERING):
                dist.all_gather(list(all_of_them.unbind(0)), own, self.group)
        return [all_of_them.flip(0) if self._backwards else all_of_them]

    def whole(self, own: Tensor, lengths: Sequence[int]) -> Tensor:
        """All ranks' tensors (n, ...), one behind the other, on all of them.

        Each rank sends its own to every other, straight to where it ends up: it may be long, and
        the process group's own gathering copies it two to four times.

        Args:
            lengths: n of each rank, in time's direction.
        """
        own = _plain(own)
        found = own.new_empty(sum(lengths), *own.shape[1:])
        parts = found.split(list(lengths))
        self.counts.collectives += 1
        others = [rank for rank in range(self.size) if rank != self.rank]
        operations = [
            *(dist.P2POp(dist.irecv, parts[rank], self._peer(rank), self.group)
              for rank in others if parts[rank].numel()),
            *(dist.P2POp(dist.isend, own, self._peer(rank), self.group)
              for rank in others if own.numel()),
        ]  # fmt: skip
        with self._named(_GATHERING):
            works = dist.batch_isend_irecv(operations) if operations else []
            give_way()
            parts[self.rank].copy_(own)
            for work in works:
                work.wait()
        return found

    def of_rank(self, rank: int, tensor: Tensor) -> Tensor:
        """One rank's tensor, on all: there as it is, elsewhere written over one like it."""
        tensor = tensor.contiguous()
        self.counts.collectives += 1
        if tensor.numel():
            with self._named(f"a tensor of rank {self._shown(rank)}"):
                dist.broadcast(tensor, self._peer(rank), self.group)
        return tensor

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums over all ranks, by one call for each dtype."""
        return self._reduced(tensors, dist.ReduceOp.SUM)

    def largest(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The largest of each number over all ranks, likewise."""
        return self._reduced(tensors, dist.ReduceOp.MAX)

    def _reduced(self, tensors: Sequence[Tensor], by: Any) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            own = [(i, t) for i, t in enumerate(tensors) if t.dtype == dtype]
            message = packed([t for _, t in own], copy=True)
            self.counts.collectives += 1
            with self._named("a sum over all ranks"):
                dist.all_reduce(message, by, self.group)
            parts = unpacked(message, [t for _, t in own])
            found |= {i: part for (i, _), part in zip(own, parts, strict=True)}
        return [found[i] for i in range(len(tensors))]

    def most(self, numbers: Sequence[float], device: torch.device) -> list[float]:
        """The largest of each of some numbers, over all ranks; NaN counts as infinite."""
        own = [math.inf if math.isnan(n) else n for n in numbers]
        tensor = torch.tensor(own, dtype=torch.float64, device=device)
        self.counts.collectives += 1
        with self._named("a maximum over all ranks"):
            dist.all_reduce(tensor, dist.ReduceOp.MAX, self.group)
        found: list[float] = tensor.tolist()
        return found

    def agree(
        self, numbers: Sequence[int], what: Sequence[str], device: torch.device
    ) -> list[list[int]]:
        """The numbers of all ranks, P times n, which have to be the same where `what` names them.

        Args:
            what: of each number, its name, or "" where ranks may differ.

        Raises:
            ValueError: names the layer, the ranks and both values. Every rank raises it.
        """
        return self.begin_agree(numbers, what, device)()[0]

    def begin_agree(
        self, numbers: Sequence[int], what: Sequence[str], device: torch.device, *beside: Tensor
    ) -> Callable[[], tuple[list[list[int]], list[Tensor]]]:
        """As `agree`, waited for later, as `begin_gather` is.

        Args:
            beside: tensors that go with the numbers.

        Returns:
            What then gives the numbers; and of `beside`, those of all ranks.
        """
        gathered = self.begin_gather(torch.tensor(numbers, device=device), *beside)
        return partial(self._agreed, gathered, what)

    def _agreed(
        self, gathered: Callable[[], list[Tensor]], what: Sequence[str]
    ) -> tuple[list[list[int]], list[Tensor]]:
        of_all, *beside = gathered()
        found = of_all.tolist()
        if found.count(found[0]) < len(found):
            self._check_same(found, what)
        return found, beside

    def _check_same(self, found: list[list[int]], what: Sequence[str]) -> None:
        first, *others = found
        for n, name in enumerate(what):
            for rank, values in enumerate(others, 1):
                if name and values[n] != first[n]:
                    raise ValueError(
                        f"{self.name or 'chain'}: rank {self._shown(rank)} of the chain brought "
                        f"{name} = {values[n]}, rank {self._shown(0)} {first[n]}; wanted the same "
                        f"of all"
                    )

    def seconds(self, device: torch.device) -> tuple[float, float]:
        """What a round takes, and each byte in it more: as measured, or as is usual.

        Nothing is measured unasked: a training that is run again must decide the same.
        """
        usual = _USUAL["cuda" if device.type == "cuda" else "cpu"]
        return _SECONDS.get(self.group, usual)

    def calibrate(self, device: torch.device) -> tuple[float, float]:
        """Measures that, for this process and group; all ranks call alike."""
        _SECONDS[self.group] = self._measured(device)
        return _SECONDS[self.group]

    def _measured(self, device: torch.device) -> tuple[float, float]:
        times, counts = [], self.counts
        self.counts = Counts()
        for count in (2, _LARGE // 4):
            message = [torch.zeros(count, device=device)]
            took = []
            for _ in range(6):
                start = time.perf_counter()
                self.pass_on(message, message)
                self.pass_on(message, message, -1)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                took.append((time.perf_counter() - start) / 2)
            times.append(sorted(took)[len(took) // 2])
        latency, large = self.most(times, device)
        self.counts = counts
        return latency, max(large - latency, 0.0) / _LARGE

    def _peer(self, rank: int) -> int:
        """Its rank in the world."""
        own = self.size - 1 - rank if self._backwards else rank
        return dist.get_global_rank(self.group, own)

    def _shown(self, rank: int) -> str:
        return str(self._peer(rank))

    def _named(self, what: str) -> _Named:
        """Errors of the process group name this rank, what is divided, and what was under way."""
        return _Named(self.name, what)


class _Named:
    """(A generator in its place would take longer than the calls that it surrounds.)"""

    def __init__(self, name: str, what: str) -> None:
        self._name, self._what = name, what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError | ValueError):
            raise RuntimeError(
                f"{self._name or 'chain'}: rank {dist.get_rank()} waited for {self._what}, in "
                f"vain: {error}"
            ) from error


_LARGE = 1 << 20  # bytes

_GATHERING = "a gathering of all ranks"
# Between processes of one machine by gloo, and between GPUs by NCCL.
_USUAL = {"cpu": (100e-6, 1e-9), "cuda": (20e-6, 2e-11)}
_SECONDS: WeakKeyDictionary[Any, tuple[float, float]] = WeakKeyDictionary()

_in_use: WeakSet[Exchange] = WeakSet()


@atexit.register
def _let_groups_go() -> None:
    """Lets process groups end that were destroyed, and are kept alive by what is divided over them.

    One that lives on while Python ends has threads that then ask Python for leave to free tensors,
    and end the process as if it had failed. (A forked process has none of them to wait for.)
    """
    for exchange in list(_in_use):
        if exchange._process == os.getpid():
            forget(exchange.group)
            del exchange.group


def _plain(t: Tensor) -> Tensor:
    """As its numbers lie in memory, in order."""
    return t.detach().resolve_conj().resolve_neg().contiguous()


def packed(tensors: Sequence[Tensor], copy: bool = False) -> Tensor:
    """Tensors of one dtype as one message."""
    if len(tensors) == 1 and not copy:
        return tensors[0].detach().contiguous().view(-1)
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _room(like: Sequence[Tensor]) -> Tensor:
    return like[0].new_empty(sum(t.numel() for t in like))


def unpacked(message: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """A message as tensors of these shapes."""
    parts = message.split([t.numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]
