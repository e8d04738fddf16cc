"""Which pipeline a process runs: delayed, synchronous, or without bubbles."""

from __future__ import annotations

from typing import Any

from torch import nn

from bppsa_lightning.layerpipe.delayed import DelayedPipeline
from bppsa_lightning.layerpipe.links import Links
from bppsa_lightning.layerpipe.plan import Plan
from bppsa_lightning.layerpipe.stage import Stage
from bppsa_lightning.layerpipe.synchronous import SynchronousPipeline
from bppsa_lightning.layerpipe.trace import Trace
from bppsa_lightning.layerpipe.weights import weights_of
from bppsa_lightning.layerpipe.zero_bubble import ZeroBubblePipeline


def pipeline_of(
    strategy: Any, plan: Plan, layers: nn.Sequential, links: Links, trace: Trace
) -> DelayedPipeline | SynchronousPipeline | ZeroBubblePipeline:
    """The stage of this process, under the schedule of a `LayerPipeStrategy`."""
    span, index, stages = plan.spans[strategy.stage], strategy.stage, strategy.stages
    own = [layers[layer] for layer in span]
    if strategy.schedule == "zero_bubble" and stages > 1:
        return ZeroBubblePipeline(own, index, stages, strategy.micro_batches, strategy.root_device)
    parameters = [p for layer in own for p in layer.parameters()]
    weights = weights_of(strategy.versions, parameters, plan.delays[index])
    stage = Stage(list(layers), span, weights, trace)
    if strategy.is_delayed:
        return DelayedPipeline(stage, index, plan, links, layers)
    return SynchronousPipeline(stage, index, stages, links, strategy.micro_batches)
