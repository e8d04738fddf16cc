"""Pruned layers in training: surviving weights only; and their neighbours, in the same layout."""

from bppsa_lightning.pruned.find import attach_layers, sparse_layers
from bppsa_lightning.pruned.fusion import LayerStack
from bppsa_lightning.pruned.layer import SparseLayer, is_candidate, unsupported
from bppsa_lightning.pruned.layout import LayoutLayer
