"""nn.Sequential with pruned layers: ReLU and max-pooling in the pass of the layer before them.

ReLU also in that of a batch norm.

At 3 % of the weights a convolution takes less time than to write its output once and to read it
for a ReLU, and again for a pooling; and as much again for the gradients. B samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.prune import BasePruningMethod

from bppsa_lightning.pruned.layer import SparseLayer
from bppsa_lightning.pruned.layout import LayoutLayer
from bppsa_lightning.pruned.standin import StandIn, stand_in_of


class LayerStack(StandIn):
    """The forward of an nn.Sequential: the same results, some of them not by way of their modules.

    A pruned layer with an nn.ReLU, an nn.MaxPool2d(2) or both behind it, in either order, is one
    operator, and an nn.BatchNorm2d in training with an nn.ReLU behind it another, wherever nobody
    looks at what is between: no hooks on any of them (but those of pruning), no tracing, no
    compiler. Otherwise the children are called one after another.
    """

    @staticmethod
    def suits(module: nn.Module) -> bool:
        """Whether a module only calls its children in order, a pruned one among them."""
        return (
            isinstance(module, nn.Sequential)
            and type(module).forward is nn.Sequential.forward
            and "forward" not in module.__dict__
            and any(isinstance(stand_in_of(child), SparseLayer) for child in module)
        )

    def __call__(self, input: Any) -> Any:
        modules: list[Any] = list(self.module._modules.values())
        looked_at = _has_any_global_hook() or torch.compiler.is_compiling()
        looked_at = looked_at or torch._C._get_tracing_state() is not None
        while modules:
            taken = 0 if looked_at else _run_length(modules, input)
            output = None
            if taken:
                layer = stand_in_of(modules[0])
                if isinstance(layer, LayoutLayer):
                    output = layer.with_relu(input)
                else:
                    assert isinstance(layer, SparseLayer)
                    kinds = [type(module) for module in modules[1:taken]]
                    output, taken = layer.with_followers(input, kinds)
            if output is None:
                output, taken = modules[0](input), 1
            input, modules = output, modules[taken:]
        return input


def _run_length(modules: Sequence[nn.Module], input: Any) -> int:
    """How many of the first modules can be one operator; 0 if not even two."""
    first, stand_in = modules[0], stand_in_of(modules[0])
    if stand_in is None or _is_watched(first):
        return 0
    if isinstance(stand_in, LayoutLayer) and type(first) is nn.BatchNorm2d:
        follows = len(modules) > 1 and type(modules[1]) is nn.ReLU
        return 2 if follows and _can_follow(modules[1]) and not _is_watched(modules[1]) else 0
    if not isinstance(stand_in, SparseLayer) or stand_in.why_left(input) is not None:
        return 0
    n, kinds = 1, set()
    for module in modules[1:3]:
        if type(module) in kinds or not _can_follow(module) or _is_watched(module):
            break
        kinds.add(type(module))
        n += 1
    return n if n > 1 else 0


def _is_watched(module: nn.Module) -> bool:
    """Whether hooks look at a module's calls; pruning's only set its weight or bias."""
    if module._forward_hooks or module._backward_hooks or module._backward_pre_hooks:
        return True
    hooks = module._forward_pre_hooks.values()
    return not all(isinstance(hook, BasePruningMethod) for hook in hooks)


def _can_follow(module: nn.Module) -> bool:
    if type(module) is nn.ReLU:
        return "forward" not in module.__dict__
    if type(module) is not nn.MaxPool2d:
        return False
    forward = module.__dict__.get("forward")
    pair = module.kernel_size, module.stride
    return (
        all(number in (2, (2, 2)) for number in pair)
        and module.padding in (0, (0, 0))
        and module.dilation in (1, (1, 1))
        and not module.ceil_mode
        and not module.return_indices
        and (forward is None or isinstance(forward, LayoutLayer))
    )
