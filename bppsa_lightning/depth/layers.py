"""Which modules can be layers of a chain over depth, and the adapter of each."""

from typing import Any

from torch import Tensor, nn

from bppsa_lightning._context import OVERRIDES_FORWARD, has_hooks, overrides_forward
from bppsa_lightning.depth import diagonal, pooling, weighted
from bppsa_lightning.depth.layer import DepthLayer

_LAYERS: dict[type[nn.Module], type[DepthLayer]] = {
    kind: layer
    for layer in (
        weighted.LinearLayer,
        weighted.ConvolutionLayer,
        diagonal.ElementwiseLayer,
        diagonal.DropoutLayer,
        diagonal.ReshapeLayer,
        diagonal.BatchNormLayer,
        pooling.MaxPoolLayer,
        pooling.AveragePoolLayer,
        pooling.AdaptivePoolLayer,
    )
    for kind in layer.kinds
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
    """Whether the Jacobian of a supported module is that of an input of so many dimensions."""
    return dims in _LAYERS[type(module)].kinds[type(module)]


def can_begin(module: nn.Module) -> bool:
    """Whether a run may begin with a supported module."""
    return _LAYERS[type(module)].can_begin(module)


def layer_of(module: nn.Module, input_size: tuple[int, ...]) -> DepthLayer:
    """The adapter of a supported module."""
    return _LAYERS[type(module)](module, input_size)
