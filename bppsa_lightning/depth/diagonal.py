"""Layers whose Jacobian is diagonal, in a chain over depth: they only scale or reshape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bppsa_lightning import jacobians
from bppsa_lightning.depth.layer import DiagonalLayer, Forward, Values, side_by_side
from bppsa_lightning.jacobians.elementwise import batch_norm_scale


class ElementwiseLayer(DiagonalLayer):
    kinds = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU)

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        m = self.module
        if isinstance(m, nn.ReLU):
            return F.relu(x), None
        if isinstance(m, nn.LeakyReLU):
            return F.leaky_relu(x, m.negative_slope), None
        return (F.silu(x), None) if isinstance(m, nn.SiLU) else (m(x), None)

    def _slope(self, x: Tensor) -> Tensor:
        m = self.module
        name = {nn.ReLU: "relu", nn.LeakyReLU: "leaky_relu", nn.Tanh: "tanh",
                nn.Sigmoid: "sigmoid", nn.SiLU: "silu"}.get(type(m))  # fmt: skip
        if name is None:
            name = "gelu_tanh" if m.approximate == "tanh" else "gelu"
        return jacobians.elementwise_values(name, x, getattr(m, "negative_slope", 0.0))

    def vjp(self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return g * self._slope(x)

    def values(self, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return side_by_side(self._slope(x))


class DropoutLayer(DiagonalLayer):
    kinds = (nn.Dropout,)

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
        scale = torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)
        return x * scale, scale

    def again(self, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return x if kept is None else x * kept

    def vjp(self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return g if kept is None else g * kept

    def values(self, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        if kept is None:
            return x.new_ones(math.prod(self.input_size))
        return side_by_side(kept)


class ReshapeLayer(DiagonalLayer):
    kinds = (nn.Flatten, nn.Identity)

    @staticmethod
    def unsupported(module: Any) -> str | None:
        if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
            return f"start_dim {module.start_dim}, end_dim {module.end_dim}"
        return None

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        return (x.flatten(1) if isinstance(self.module, nn.Flatten) else x), None

    def vjp(self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return g.reshape(x.shape)

    def apply(
        self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor], values: Values
    ) -> Tensor:
        return g

    def values(self, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return x.new_ones(math.prod(self.input_size))


class BatchNormLayer(DiagonalLayer):
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)

    @staticmethod
    def unsupported(module: Any) -> str | None:
        if module.training or module.running_var is None:
            return "training mode: the statistics of a batch couple its samples"
        return None

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        m = self.module
        weight, bias = parameters or (None, None)
        return F.batch_norm(x, m.running_mean, m.running_var, weight, bias, eps=m.eps), None

    def _scale(self, parameters: Sequence[Tensor]) -> Tensor:
        return batch_norm_scale(
            self.module.running_var, parameters[0] if parameters else None, self.module.eps
        )

    def _per_channel(self, numbers: Tensor) -> Tensor:
        return numbers.view(-1, *[1] * (len(self.input_size) - 1))

    def vjp(self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return g * self._per_channel(self._scale(parameters))

    def parameter_grads(
        self, g: Tensor, x: Tensor, parameters: Sequence[Tensor], wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        if not parameters:
            return []
        m = self.module
        others = [d for d in range(x.dim()) if d != 1]
        normal = (x - self._per_channel(m.running_mean)) * self._per_channel(
            torch.rsqrt(m.running_var + m.eps)
        )
        return [
            (g * normal).sum(others) if wanted[0] else None,
            g.sum(others) if wanted[1] else None,
        ]

    def values(self, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return self._scale(parameters).repeat_interleave(math.prod(self.input_size[1:]))
