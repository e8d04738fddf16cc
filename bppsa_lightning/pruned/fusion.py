"""nn.Sequential with pruned layers: ReLU and max-pooling in the pass of the layer before them.

ReLU also in that of a batch norm.

At 3 % of the weights a convolution takes less time than to write its output once and to read it
for a ReLU, and again for a pooling; and as much again for the gradients. B samples.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from bppsa_lightning._context import has_hooks, is_tracing, overrides_forward
from bppsa_lightning._replacement import Replacement, replacement_of
from bppsa_lightning.pruned.layer import SparseLayer
from bppsa_lightning.pruned.layout import LayoutLayer


class LayerStack(Replacement):
    """The forward of an nn.Sequential: the same results, some of them not by way of their modules.

    A pruned layer with an nn.ReLU, an nn.MaxPool2d(2) or both behind it, in either order, is one
    operator, and an nn.BatchNorm2d in training with an nn.ReLU behind it another, wherever nobody
    looks at what is between: no hooks on any of them (but those of pruning), no tracing, no
    compiler. Otherwise the children are called one after another.
    """

    @staticmethod
    def supports(module: nn.Module) -> bool:
        """Whether a module only calls its children in order, a pruned one among them."""
        return (
            isinstance(module, nn.Sequential)
            and not overrides_forward(module, nn.Sequential)
            and any(replacement_of(child, SparseLayer) for child in module)
        )

    def __call__(self, input: Any) -> Any:
        modules: list[Any] = list(self.module._modules.values())
        looked_at = _has_any_global_hook() or is_tracing()
        while modules:
            output, taken = (None, 0) if looked_at else _fused(modules, input)
            if not taken:
                output, taken = modules[0](input), 1
            input, modules = output, modules[taken:]
        return input


def _fused(modules: Sequence[nn.Module], input: Any) -> tuple[Any, int]:
    """The output of the first modules as one operator, and their number; 0 if no two can be."""
    first, replacement = modules[0], replacement_of(modules[0], Replacement)
    if replacement is None or has_hooks(first):
        return None, 0
    if isinstance(replacement, SparseLayer) and replacement.known_fallback(input) is not None:
        return None, 0
    followers: list[type[nn.Module]] = []
    for module in modules[1:3]:
        if type(module) in followers or not _can_follow(module) or has_hooks(module):
            break
        followers.append(type(module))
    if isinstance(replacement, SparseLayer) and followers:
        return replacement.with_followers(input, followers)
    if isinstance(replacement, LayoutLayer) and followers[:1] == [nn.ReLU]:
        return replacement.with_relu(input)
    return None, 0


def _can_follow(module: nn.Module) -> bool:
    if type(module) is nn.ReLU:
        return not overrides_forward(module, nn.ReLU)
    if type(module) is not nn.MaxPool2d or overrides_forward(module, nn.MaxPool2d, LayoutLayer):
        return False
    pair = module.kernel_size, module.stride
    return (
        all(number in (2, (2, 2)) for number in pair)
        and module.padding in (0, (0, 0))
        and module.dilation in (1, (1, 1))
        and not module.ceil_mode
        and not module.return_indices
    )
