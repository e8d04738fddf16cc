"""What the stages hold each for itself, brought together: weights, optimizer states, traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from bppsa_lightning.layerpipe.links import rank_of
from bppsa_lightning.layerpipe.trace import Event, write_chrome_trace


@torch.no_grad()
def share_weights(chain: nn.Sequential, spans: Sequence[range], device: torch.device) -> None:
    """Gives every process the parameters and buffers of every stage, as they are there.

    And what their last forward has made of masked weights: the next pruning compares those.
    """
    for stage, span in enumerate(spans):
        for layer in span:
            for tensor in _tensors(chain[layer]):
                _broadcast(tensor, rank_of(stage, len(spans)), device)


def _tensors(layer: nn.Module) -> Iterator[torch.Tensor]:
    yield from layer.parameters()
    yield from layer.buffers()
    for module in layer.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, BasePruningMethod):
                yield vars(module)[hook._tensor_name]


@torch.no_grad()
def share_from_zero(model: nn.Module, device: torch.device) -> None:
    """Gives every process the parameters and buffers of rank 0."""
    for tensor in [*model.parameters(), *model.buffers()]:
        _broadcast(tensor, 0, device)


def averages(callbacks: Sequence[object]) -> list[AveragedModel]:
    """The moving averages of the weights that callbacks keep (Lightning's `WeightAveraging`).

    Each process averages the weights that it has, of which only its own stage's are new.
    """
    kept = (getattr(callback, "_average_model", None) for callback in callbacks)
    return [average for average in kept if isinstance(average, AveragedModel)]


def _broadcast(tensor: torch.Tensor, rank: int, device: torch.device) -> None:
    sent = tensor.data.to(device).contiguous()  # an average may be kept on another device
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


def written_trace(file: str | Path, own: list[Event], rank: int, stages: int) -> list[list[Event]]:
    """As `events_of_stages`, written to a file on rank 0."""
    events = events_of_stages(own, rank, stages)
    if events:
        write_chrome_trace(file, events)
    return events


def events_of_stages(own: list[Event], rank: int, stages: int) -> list[list[Event]]:
    """On rank 0, what every stage's process has noted, the first stage first; else nothing."""
    if stages == 1:
        return [own]
    found: list[Any] | None = None if rank else [None] * stages
    dist.gather_object(own, found)
    return found[::-1] if found else []  # rank 0 is the last stage
