"""The pruned layers of a module, and the layers that keep their layout."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from bppsa_lightning.pruned.fusion import LayerStack
from bppsa_lightning.pruned.layer import SparseLayer, of_module
from bppsa_lightning.pruned.layout import LayoutLayer
from bppsa_lightning.pruned.standin import StandIn, stand_in_of


def attach_layers(module: nn.Module, but: Collection[nn.Module] = ()) -> list[StandIn]:
    """Attaches the pruned layers of a module, poolings and batch norms beside them, their stacks.

    Args:
        but: modules to leave alone.

    Returns:
        What was not attached before.
    """
    found: list[StandIn] = []
    for name, child in module.named_modules():
        if child not in but and stand_in_of(child) is None and of_module(child) is None:
            found.append(SparseLayer(name, child))
    if found or sparse_layers(module):
        for name, child in module.named_modules():
            if child not in but and LayoutLayer.suits(child):
                found.append(LayoutLayer(name, child))
    for stand_in in found:
        stand_in.attach()
    stacks: list[StandIn] = [
        LayerStack(name, child)
        for name, child in module.named_modules()
        if child not in but and LayerStack.suits(child)
    ]
    for stack in stacks:
        stack.attach()
    return found + stacks


def sparse_layers(module: nn.Module) -> dict[str, SparseLayer]:
    """The attached pruned layers of a module, by dotted name."""
    pairs = ((name, stand_in_of(child)) for name, child in module.named_modules())
    return {name: layer for name, layer in pairs if isinstance(layer, SparseLayer)}


def detach_layers(module: nn.Module) -> None:
    """Detaches all of them."""
    for child in module.modules():
        stand_in = stand_in_of(child)
        if stand_in is not None:
            stand_in.detach()
