"""The costs of a chain's tasks as this machine takes them: the third cost model."""

from __future__ import annotations

import copy
from collections import defaultdict
from statistics import median

import torch
from torch import Tensor, nn

from bppsa_lightning.layerpipe.costs import LayerCost
from bppsa_lightning.layerpipe.stage import Stage
from bppsa_lightning.layerpipe.trace import Trace
from bppsa_lightning.layerpipe.weights import Stash


def measure(chain: nn.Sequential, x: Tensor, repeats: int = 5) -> list[LayerCost]:
    """Seconds of F, D and G of each layer, with the threads that torch has now.

    Args:
        chain: the layers; a copy of them is run.
        x: an input of the chain.
        repeats: how often, after one run that does not count; the medians are taken.
    """
    layers = copy.deepcopy(chain)
    trace = Trace(keep=True)
    stage = Stage(list(layers), range(len(layers)), Stash(layers.parameters()), trace)
    sizes = []
    with torch.enable_grad():
        for k in range(repeats + 1):
            if k == 1:
                trace.events.clear()
            y = stage.forward(k, x)
            sizes = [(p.x.numel(), p.y.numel()) for p in stage.under_way[k].pieces]
            stage.input_gradients(k, torch.ones_like(y))
            stage.weight_gradients(k)
    seconds = defaultdict(list)
    for event in trace.events:
        seconds[event.kind, event.layer].append(event.end - event.start)
    took = {task: median(found) for task, found in seconds.items()}
    return [
        LayerCost(
            f"{m}", took["F", m], took.get(("D", m), 0.0), took.get(("G", m), 0.0), outputs,
            sum(p.numel() for p in layers[m].parameters()), inputs,
        )
        for m, (inputs, outputs) in enumerate(sizes)
    ]  # fmt: skip
