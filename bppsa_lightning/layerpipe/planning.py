"""A plan from the model and its first mini-batch: costs, stages, tasks that are lent, memory.

Costs are counted, not measured, so that the same training is divided in the same way every time
(other stages have other delays, and another result).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bppsa_lightning.layerpipe.costs import LayerCost
from bppsa_lightning.layerpipe.delays import spans
from bppsa_lightning.layerpipe.plan import Plan, at_home

# What a number costs that is read and written, in multiply-and-add operations: layers without
# products are bound by memory.
OPERATIONS_PER_NUMBER = 8.0


def make_plan(chain: nn.Sequential, x: Tensor, strategy: Any) -> Plan:
    """The division of a chain for a `LayerPipeStrategy`.

    Args:
        chain: its layers.
        x: the chain's input in the first mini-batch; the model and the random generators are left
            as they are.
    """
    costs, kept = profile(chain, x)
    cuts = strategy.cuts
    if cuts is None:
        cuts = choose_cuts(costs, strategy.stages)
    plan = at_home(len(chain), cuts, strategy.schedule, strategy.is_delayed)
    ranges = spans(cuts, len(chain))
    return Plan(
        plan.layers, plan.cuts, plan.delays, plan.lent, plan.shared,
        tuple(sum(kept[m] for m in span) for span in ranges),
        tuple(sum(_bytes(chain[m]) for m in span) for span in ranges),
    )  # fmt: skip


def choose_cuts(costs: Sequence[LayerCost], stages: int) -> tuple[int, ...]:
    """The cuts with which the slowest stage has least to do."""
    from bppsa_lightning.layerpipe.pipedream import partition

    return tuple(partition(costs, stages))


def _bytes(layer: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in layer.parameters())


def profile(chain: nn.Sequential, x: Tensor) -> tuple[list[LayerCost], list[int]]:
    """The costs of each layer's tasks, and the bytes that it keeps for its backward.

    Args:
        chain: its layers.
        x: an input.
    """
    costs, kept = [], []
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        for index, layer in enumerate(copy.deepcopy(chain)):
            cost, count, x = _profile(f"{index}", layer, x, first=index == 0)
            costs.append(cost)
            kept.append(count)
    return costs, kept


def _profile(
    name: str, layer: nn.Module, x: Tensor, first: bool
) -> tuple[LayerCost, int, Tensor]:
    x = x.detach()
    if x.is_floating_point():
        x.requires_grad_(not first)
    own = {p.untyped_storage()._cdata for p in layer.parameters()}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in own:
            saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with FlopCounterMode(display=False) as forward:
            y = layer(x.clone())
    keep(x.detach())
    parameters = [p for p in layer.parameters() if p.requires_grad]
    numbers = OPERATIONS_PER_NUMBER * (x.numel() + y.numel())
    cost = LayerCost(
        name=name,
        forward=forward.get_total_flops() / 2 + numbers,
        input_gradient=_products(y, [x]) + numbers if x.requires_grad else 0.0,
        weight_gradient=_products(y, parameters) + numbers if parameters else 0.0,
        output_size=y.numel(),
        weight_size=sum(p.numel() for p in parameters),
        input_size=x.numel(),
    )
    return cost, sum(t.untyped_storage().nbytes() for t in saved.values()), y


def _products(y: Tensor, inputs: Sequence[Tensor]) -> float:
    """Multiplications and additions of a gradient."""
    if not y.requires_grad:
        return 0.0
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(y, inputs, torch.ones_like(y), retain_graph=True, allow_unused=True)
    return counter.get_total_flops() / 2
