"""What the stages hold each for itself, brought together: weights, optimizer states, traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from bppsa_lightning.layerpipe.links import rank_of
from bppsa_lightning.layerpipe.trace import Event


@torch.no_grad()
def share_weights(chain: nn.Sequential, spans: Sequence[range]) -> None:
    """Gives every process the parameters and buffers of every stage, as they are there."""
    for stage, span in enumerate(spans):
        for layer in span:
            for tensor in [*chain[layer].parameters(), *chain[layer].buffers()]:
                _broadcast(tensor, rank_of(stage, len(spans)))


@torch.no_grad()
def share_from_zero(model: nn.Module) -> None:
    """Gives every process the parameters and buffers of rank 0."""
    for tensor in [*model.parameters(), *model.buffers()]:
        _broadcast(tensor, 0)


def _broadcast(tensor: torch.Tensor, rank: int) -> None:
    sent = tensor.data.contiguous()
    dist.broadcast(sent, rank)
    if sent.data_ptr() != tensor.data_ptr():
        tensor.data.copy_(sent)


def whole_state(optimizer: Optimizer, own: set[int]) -> dict[str, Any]:
    """An optimizer's state with the parts of all processes, on rank 0; elsewhere its own part.

    Args:
        optimizer: over all parameters of the model, as in every process.
        own: ids of the parameters that this process updates.
    """
    state = optimizer.state_dict()
    numbers = (n for group in state["param_groups"] for n in group["params"])
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    mine = {n for n, p in zip(numbers, parameters, strict=True) if id(p) in own}
    part = {n: kept for n, kept in state["state"].items() if n in mine}
    parts: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(part, parts)
    for other in parts or [part]:
        part |= other
    return {**state, "state": dict(sorted(part.items()))}


def events_of_stages(own: list[Event], rank: int, stages: int) -> list[list[Event]]:
    """On rank 0, what every stage's process has noted, the first stage first; else nothing."""
    if stages == 1:
        return [own]
    found: list[Any] | None = None if rank else [None] * stages
    dist.gather_object(own, found)
    return found[::-1] if found else []  # rank 0 is the last stage
