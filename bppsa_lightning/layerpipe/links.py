"""The channels of a process to the others of its pipeline."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bppsa_lightning._gloo import let_threads_wait
from bppsa_lightning.layerpipe.channels import Channel

# Activations to the next stage; gradients to the one before; inputs and gradients of a layer to the
# stage that does its G; what that makes, back.
KINDS = ("F", "D", "G", "W")


def rank_of(stage: int, stages: int) -> int:
    """The rank of a stage's process: the last stage's is 0.

    The loss is known in the last stage, and Lightning logs on rank 0.
    """
    return stages - 1 - stage


class Links:
    """All channels of one process, made when they are first used.

    Args:
        stages: how many there are. Every process makes its `Links` at the same time.
        device: of this process.
        timeout: after which a process that waits for another raises.
    """

    def __init__(self, stages: int, device: torch.device, timeout: timedelta | None) -> None:
        self._stages, self._device = stages, device
        self._groups: dict[str, Any] = {}
        if stages > 1:
            self._groups = {kind: dist.new_group(timeout=timeout) for kind in KINDS}
            for group in self._groups.values():
                let_threads_wait(group)
        self._channels: dict[tuple[str, int], Channel] = {}
        # A message is taken at the latest when the mini-batch's gradient has come back, or two
        # turns after it was sent; some messages are three tensors.
        self._pending = 3 * (2 * stages + 4)

    def channel(self, kind: str, stage: int) -> Channel:
        """To and from another stage, for a kind of message."""
        if (kind, stage) not in self._channels:
            peer = rank_of(stage, self._stages)
            group = self._groups[kind]
            self._channels[kind, stage] = Channel(peer, group, self._device, self._pending)
        return self._channels[kind, stage]

    def flush(self) -> None:
        """Waits until all that was sent has been taken."""
        for channel in self._channels.values():
            channel.flush()

    def close(self) -> None:
        """Ends the channels; nothing must be under way."""
        self._channels.clear()
        for group in self._groups.values():
            dist.destroy_process_group(group)
        self._groups = {}
