"""Layers whose Jacobian is diagonal, in a chain over depth: they only scale or reshape."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bppsa_lightning import jacobians, ops
from bppsa_lightning.depth.layer import (
    ANY_DIMS,
    DiagonalLayer,
    Forward,
    LayerCall,
    Values,
    side_by_side,
)
from bppsa_lightning.jacobians.elementwise import batch_norm_scale

_FUNCTIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky_relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.GELU: "gelu",
    nn.SiLU: "silu",
}
_OF_THE_OUTPUT = {nn.ReLU, nn.Tanh, nn.Sigmoid}  # PyTorch keeps that for their backward


class ElementwiseLayer(DiagonalLayer):
    kinds = dict.fromkeys(_FUNCTIONS, ANY_DIMS)
    option_names = ("negative_slope", "approximate")

    @staticmethod
    def can_begin(module: Any) -> bool:
        return type(module) not in _OF_THE_OUTPUT and not getattr(module, "inplace", False)

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        m, (negative_slope, approximate) = self.module, self.options
        if isinstance(m, nn.LeakyReLU):
            return F.leaky_relu(x, negative_slope), None
        if isinstance(m, nn.GELU):
            return F.gelu(x, approximate=approximate), None
        # Not the module's forward, which may work in place.
        return getattr(F, _FUNCTIONS[type(m)])(x), None

    def _slope(self, x: Tensor) -> Tensor:
        name, (negative_slope, approximate) = _FUNCTIONS[type(self.module)], self.options
        if name == "gelu" and approximate == "tanh":
            name = "gelu_tanh"
        return jacobians.elementwise_values(name, x, negative_slope or 0.0)

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        return g * self._slope(call.x)

    def values(self, call: LayerCall) -> Tensor:
        return side_by_side(self._slope(call.x))


class DropoutLayer(DiagonalLayer):
    kinds = {nn.Dropout: ANY_DIMS}
    reads_input = False

    @staticmethod
    def can_begin(module: Any) -> bool:
        return False

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        p = self.module.p
        if not self.module.training or p == 0:
            return x, None
        if p == 1:
            return torch.zeros_like(x), torch.zeros_like(x)
        # As PyTorch draws it, on either device: the same seed gives the same mask.
        if x.is_cuda:
            y, kept = torch.native_dropout(x, p, True)
            return y, kept.to(x.dtype).mul_(1 / (1 - p))
        scale = ops.dropout(torch.ones_like(x), p)
        return x * scale, scale

    def again(self, call: LayerCall) -> Tensor:
        return call.x if call.kept is None else call.x * call.kept

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        return g if call.kept is None else g * call.kept

    def values(self, call: LayerCall) -> Tensor:
        if call.kept is None:
            return call.x.new_ones(math.prod(self.input_size))
        return side_by_side(call.kept)


class ReshapeLayer(DiagonalLayer):
    kinds = {nn.Flatten: ANY_DIMS, nn.Identity: ANY_DIMS}
    reads_input = False

    @staticmethod
    def can_begin(module: Any) -> bool:
        return False

    @staticmethod
    def unsupported(module: Any) -> str | None:
        if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
            return f"start_dim {module.start_dim}, end_dim {module.end_dim}"
        return None

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        return (x.flatten(1) if isinstance(self.module, nn.Flatten) else x), None

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        return g.reshape(call.x.shape)

    def apply(self, g: Tensor, call: LayerCall, values: Values) -> Tensor:
        return g

    def values(self, call: LayerCall) -> Tensor:
        return call.x.new_ones(math.prod(self.input_size))


class BatchNormLayer(DiagonalLayer):
    kinds = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,)}
    option_names = ("eps",)

    @staticmethod
    def unsupported(module: Any) -> str | None:
        if module.training or module.running_var is None:
            return "training mode: the statistics of a batch couple its samples"
        return None

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        m = self.module
        weight, bias = parameters or (None, None)
        (eps,) = self.options
        return F.batch_norm(x, m.running_mean, m.running_var, weight, bias, eps=eps), None

    def _scale(self, parameters: Sequence[Tensor]) -> Tensor:
        (eps,) = self.options
        return batch_norm_scale(self.module.running_var, parameters[0] if parameters else None, eps)

    def _per_channel(self, numbers: Tensor) -> Tensor:
        return numbers.view(-1, *[1] * (len(self.input_size) - 1))

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        return g * self._per_channel(self._scale(call.parameters))

    def parameter_grads(
        self, g: Tensor, call: LayerCall, wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        if not wanted:
            return []
        m, x, (eps,) = self.module, call.x, self.options
        others = [d for d in range(x.dim()) if d != 1]
        normal = (x - self._per_channel(m.running_mean)) * self._per_channel(
            torch.rsqrt(m.running_var + eps)
        )
        return [
            (g * normal).sum(others) if wanted[0] else None,
            g.sum(others) if wanted[1] else None,
        ]

    def values(self, call: LayerCall) -> Tensor:
        return self._scale(call.parameters).repeat_interleave(math.prod(self.input_size[1:]))
