"""The pruned layers of a module, and the layers between them that keep their layout."""

from collections.abc import Collection

from torch import nn

from bppsa_lightning._replacement import Made, Replacement, replacement_of, replacements
from bppsa_lightning.pruned.fusion import LayerStack
from bppsa_lightning.pruned.layer import SparseLayer, unsupported
from bppsa_lightning.pruned.layout import LayoutLayer
from bppsa_lightning.pruned.masks import advise_emptied


def attach_layers(
    module: nn.Module, but: Collection[nn.Module] = (), made: Made | None = None
) -> list[Replacement]:
    """Attaches the pruned layers of a module, poolings and batch norms beside them, their stacks.

    Leaves alone the modules in `but`. Returns the replacements that this call attached.
    """
    made = made or Made()
    modules = [(name, child) for name, child in module.named_modules() if child not in but]
    attached: list[Replacement] = [
        made(SparseLayer, name, child)
        for name, child in modules
        if replacement_of(child, Replacement) is None and unsupported(child) is None
    ]
    if attached or sparse_layers(module):
        attached += [made(LayoutLayer, name, m) for name, m in modules if LayoutLayer.supports(m)]
    for replacement in attached:
        replacement.attach()
    stacks = [made(LayerStack, name, m) for name, m in modules if LayerStack.supports(m)]
    for stack in stacks:
        stack.attach()
    for name, child in modules:
        advise_emptied(name, child)
    return [*attached, *stacks]


def sparse_layers(module: nn.Module) -> dict[str, SparseLayer]:
    """The attached pruned layers of a module, by dotted name."""
    return replacements(module, SparseLayer)
