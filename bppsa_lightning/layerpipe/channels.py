"""Tensors from one process to another, in order, without waiting for the other to take them."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bppsa_lightning._gloo import give_way

MOST_DIMENSIONS = 14
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16,
    torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool,
)  # fmt: skip


class Channel:
    """One direction between two processes, for one kind of message.

    The receiver learns shape and dtype from a header before each tensor, so that the last, smaller
    batch of an epoch is a message as any other.

    Args:
        peer: the other's rank.
        group: a process group that holds both, of this kind of message alone: where messages have
            no tags (NCCL), those of a group arrive in the order in which they were sent.
        device: where received tensors are put.
        pending: how many messages may be on their way; the oldest is waited for.

    Raises:
        RuntimeError: by `receive`, when the peer is gone.
    """

    def __init__(
        self, peer: int, group: dist.ProcessGroup | None, device: torch.device, pending: int
    ) -> None:
        self._peer, self._group, self._device = peer, group, device
        self._most = pending
        self._sent: deque[list[tuple[Any, Tensor]]] = deque()

    def send(self, tensor: Tensor) -> None:
        """Sends a tensor, which must not be changed any more."""
        tensor = tensor.detach().contiguous()
        if tensor.ndim > MOST_DIMENSIONS or tensor.dtype not in DTYPES:
            raise TypeError(
                f"chain: found a tensor of {tensor.ndim} dimensions and {tensor.dtype} between two "
                f"stages, wanted at most {MOST_DIMENSIONS} and one of {', '.join(map(str, DTYPES))}"
            )
        head = [tensor.ndim, DTYPES.index(tensor.dtype), *tensor.shape]
        header = torch.zeros(MOST_DIMENSIONS + 2, dtype=torch.int64, device="cpu")
        header[: len(head)] = torch.tensor(head, device="cpu")
        parts = [header.to(self._device)] + ([tensor] if tensor.numel() else [])
        sends = [(dist.isend(part, self._peer, group=self._group), part) for part in parts]
        give_way()
        self._sent.append(sends)
        if len(self._sent) > self._most:
            self._wait(self._sent.popleft())

    def receive(self) -> Tensor:
        """The next tensor that the peer has sent."""
        header = torch.empty(MOST_DIMENSIONS + 2, dtype=torch.int64, device=self._device)
        dist.recv(header, self._peer, group=self._group)
        ndim, dtype, *shape = header.tolist()
        tensor = torch.empty(shape[:ndim], dtype=DTYPES[dtype], device=self._device)
        if tensor.numel():
            dist.recv(tensor, self._peer, group=self._group)
        return tensor

    def flush(self) -> None:
        """Waits until all that was sent has been taken."""
        while self._sent:
            self._wait(self._sent.popleft())

    @staticmethod
    def _wait(sends: list[tuple[Any, Tensor]]) -> None:
        for work, _ in sends:
            work.wait()
