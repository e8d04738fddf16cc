"""A plan from the model and its first mini-batch: costs, stages, tasks that are lent, memory.

Costs are counted, not measured, so that the same training is divided in the same way every time
(other stages have other delays, and another result).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bppsa_lightning.layerpipe.assignment import Assignment, as_pipedream, assign
from bppsa_lightning.layerpipe.costs import LayerCost
from bppsa_lightning.layerpipe.drains import reads_steps
from bppsa_lightning.layerpipe.movable import is_movable
from bppsa_lightning.layerpipe.pipedream import partition
from bppsa_lightning.layerpipe.plan import Plan, at_home
from bppsa_lightning.layerpipe.simulator import Simulation
from bppsa_lightning.layerpipe.stage import check_output

# What a number costs that is read and written, in multiply-and-add operations: layers without
# products are bound by memory.
OPERATIONS_PER_NUMBER = 8.0
# Tasks are moved from one process to another if that shortens the interval by this factor.
WORTH_MOVING = 1.1
SIMULATED = 40  # mini-batches


def make_plan(chain: nn.Sequential, x: Tensor, strategy: Any) -> Plan:
    """The division of a chain for a `LayerPipeStrategy`.

    Args:
        chain: its layers.
        x: the chain's input in the first mini-batch; the model and the random generators are left
            as they are.
    """
    costs, kept = profile(chain, x)
    count, stages = len(chain), strategy.stages
    cuts = partition(costs, stages) if strategy.cuts is None else strategy.cuts
    plan = at_home(count, cuts, strategy.schedule, strategy.is_delayed)
    # (Under autocast only the layers themselves know in which dtype they multiply.)
    mixed = "mixed" in str(strategy.lightning_module.trainer.precision)
    if strategy.is_delayed and strategy.schedule == "layerpipe" and not mixed:
        balanced = assign(costs, stages, cuts=strategy.cuts, movable=_movable(chain))
        if worth_moving(costs, cuts, balanced) and not _meets_every_step(strategy):
            plan = with_tasks_moved(plan, balanced, costs)
    return dataclasses.replace(
        plan,
        bytes=tuple(sum(kept[m] for m in span) for span in plan.spans),
        stashed=tuple(sum(_bytes(chain[m]) for m in span) for span in plan.spans),
    )


def worth_moving(costs: Sequence[LayerCost], cuts: Sequence[int], found: Assignment) -> bool:
    """Whether an assignment is faster than its tasks at home, in a simulation of both.

    Its loads alone do not say so: with the delays of few stages some tasks wait for each other.
    """
    home = as_pipedream(costs, cuts, found.processors)
    if home.interval(costs) < WORTH_MOVING * found.interval(costs):
        return False
    intervals = [Simulation(costs, who, "layerpipe", SIMULATED).interval() for who in (home, found)]
    return intervals[0] >= WORTH_MOVING * intervals[1]


def with_tasks_moved(plan: Plan, found: Assignment, costs: Sequence[LayerCost]) -> Plan:
    """A plan with the cuts of an assignment, and with its tasks away from home."""
    cuts = found.cuts
    where = enumerate(zip(found.forward, found.weight_gradient, strict=True))
    lent = {m: g for m, (f, g) in where if f != g and costs[m].weight_gradient}
    at_home = [dict(found.input_gradient[m]).get(f, 0.0) for m, f in enumerate(found.forward)]
    shared = {s: at_home[m] for s, m in enumerate(cuts, 1) if at_home[m] < 1}
    return dataclasses.replace(plan, cuts=cuts, lent=lent, shared=shared)


def _movable(chain: nn.Sequential) -> list[bool]:
    """Which layers' D and G may be done away from home."""
    return [is_movable(layer) for layer in chain]


def _meets_every_step(strategy: Any) -> bool:
    """Whether a callback, or a scheduler, makes all processes wait for each other in every step.

    Lent tasks belong to the next step of their owner; the one would wait for the other for ever.
    """
    trainer = strategy.lightning_module.trainer
    timed = any(getattr(c, "_train_time_interval", None) is not None for c in trainer.callbacks)
    # (_LRCallback: of a search for a learning rate, which asks whether the loss is too large.)
    waits = any(type(c).__name__ in ("Timer", "_LRCallback") for c in trainer.callbacks)
    return timed or waits or any(map(reads_steps, trainer.lr_scheduler_configs))


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
        for index, layer in enumerate(_copied(chain)):
            cost, count, x = _profile(index, layer, x)
            costs.append(cost)
            kept.append(count)
    return costs, kept


def _copied(chain: nn.Sequential) -> nn.Sequential:
    try:
        return copy.deepcopy(chain)
    except Exception as error:
        raise ValueError(
            f"chain: found layers that cannot be copied ({error}), wanted some that can: their "
            "work is counted on copies. In place of torch.nn.utils.weight_norm there is "
            "torch.nn.utils.parametrizations.weight_norm"
        ) from error


def _profile(index: int, layer: nn.Module, x: Tensor) -> tuple[LayerCost, int, Tensor]:
    x = x.detach()
    if x.is_floating_point():
        x.requires_grad_(index > 0)
    own = {p.untyped_storage()._cdata for p in layer.parameters()}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in own:
            saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, FlopCounterMode(display=False) as forward:
        y = layer(x.clone())
    check_output(index, layer, y)
    keep(x.detach())
    parameters = [p for p in layer.parameters() if p.requires_grad]
    numbers = OPERATIONS_PER_NUMBER * (x.numel() + y.numel())
    cost = LayerCost(
        name=f"{index}",
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
