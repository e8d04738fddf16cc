"""Pruned layers in training: surviving weights only; and their neighbours, in the same layout."""

from bppsa_lightning.pruned.find import attach_layers, detach_layers, sparse_layers
from bppsa_lightning.pruned.fusion import LayerStack
from bppsa_lightning.pruned.layer import SparseLayer, of_module
from bppsa_lightning.pruned.layout import LayoutLayer
from bppsa_lightning.pruned.standin import StandIn, stand_in_of

__all__ = [
    "LayerStack",
    "LayoutLayer",
    "SparseLayer",
    "StandIn",
    "attach_layers",
    "detach_layers",
    "of_module",
    "sparse_layers",
    "stand_in_of",
]
