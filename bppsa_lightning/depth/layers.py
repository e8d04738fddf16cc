"""Which modules can be layers of a chain over depth, and the adapter of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from bppsa_lightning._context import OVERRIDES_FORWARD, has_hooks, overrides_forward
from bppsa_lightning.depth.diagonal import (
    BatchNormLayer,
    DropoutLayer,
    ElementwiseLayer,
    ReshapeLayer,
)
from bppsa_lightning.depth.layer import DepthLayer
from bppsa_lightning.depth.pooling import AveragePoolLayer, MaxPoolLayer
from bppsa_lightning.depth.weighted import ConvolutionLayer, LinearLayer

_LAYERS: dict[type[nn.Module], type[DepthLayer]] = {
    kind: layer
    for layer in (
        LinearLayer,
        ConvolutionLayer,
        ElementwiseLayer,
        DropoutLayer,
        ReshapeLayer,
        BatchNormLayer,
        MaxPoolLayer,
        AveragePoolLayer,
    )
    for kind in layer.kinds
}
_DIMS: dict[type[nn.Module], Sequence[int]] = {
    nn.Linear: (2,),
    nn.Conv1d: (3,),
    nn.Conv2d: (4,),
    nn.MaxPool2d: (4,),
    nn.AvgPool2d: (4,),
    nn.AdaptiveAvgPool2d: (4,),
    nn.BatchNorm1d: (2, 3),
    nn.BatchNorm2d: (4,),
}


def unsupported(module: nn.Module) -> str | None:
    """Why a module cannot be a layer of a chain as it stands; None if it can."""
    kind = _LAYERS.get(type(module))
    if kind is None:
        return "no Jacobian for it"
    if overrides_forward(module, type(module)):
        return OVERRIDES_FORWARD
    return "it has hooks" if has_hooks(module) else kind.unsupported(module)


def parameters_of(module: Any) -> list[Tensor]:
    """Weight and bias of a supported module, those it has: in the order of `parameter_grads`."""
    parameters = (getattr(module, "weight", None), getattr(module, "bias", None))
    return [p for p in parameters if p is not None]


def fits_input(module: nn.Module, dims: int) -> bool:
    """Whether a batch of so many dimensions is what a layer's Jacobian is made for."""
    return dims in _DIMS.get(type(module), range(2, 6))


def layer_of(module: nn.Module, input_size: tuple[int, ...]) -> DepthLayer:
    """The adapter of a supported module."""
    return _LAYERS[type(module)](module, input_size)
