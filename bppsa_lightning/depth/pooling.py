"""Poolings in a chain over depth."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bppsa_lightning import jacobians
from bppsa_lightning.depth.layer import FixedLayer, Forward, LayerCall, Values, side_by_side
from bppsa_lightning.jacobians import Pattern, apply_csr


class PoolLayer(FixedLayer):
    """Windows over images."""

    def apply(self, g: Tensor, call: LayerCall, values: Values) -> Tensor:
        pattern = self.pattern(call.parameters)
        if pattern.selects:
            return apply_csr(pattern, values(), g)
        return super().apply(g, call, values)


class MaxPoolLayer(PoolLayer):
    kinds = {nn.MaxPool2d: (4,)}

    @staticmethod
    def unsupported(module: Any) -> str | None:
        return "return_indices" if module.return_indices else None

    def __init__(self, module: Any, input_size: tuple[int, ...]) -> None:
        super().__init__(module, input_size)
        m = module
        self._window = (m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode)

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        return F.max_pool2d_with_indices(x, *self._window)

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        return torch.ops.aten.max_pool2d_with_indices_backward(
            g, call.x, *(_two(v) for v in self._window[:4]), self._window[4], call.kept
        )

    def _build_pattern(self) -> Pattern:
        self._jacobian = jacobians.max_pool2d_pattern(self.input_size, *self._window)
        return self._jacobian.pattern

    def values(self, call: LayerCall) -> Tensor:
        return side_by_side(self._jacobian.values(call.x))


class AveragePoolLayer(PoolLayer):
    kinds = {nn.AvgPool2d: (4,), nn.AdaptiveAvgPool2d: (4,)}

    def _arguments(self) -> tuple[Any, ...]:
        m = self.module
        sizes = (_two(m.kernel_size), _two(m.stride), _two(m.padding))
        return (*sizes, m.ceil_mode, m.count_include_pad, m.divisor_override)

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        return self.module(x), None

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        if isinstance(self.module, nn.AdaptiveAvgPool2d):
            return torch.ops.aten._adaptive_avg_pool2d_backward(g, call.x)
        return torch.ops.aten.avg_pool2d_backward(g.contiguous(), call.x, *self._arguments())

    def _build_pattern(self) -> Pattern:
        m, size = self.module, self.input_size
        if isinstance(m, nn.AdaptiveAvgPool2d):
            self._jacobian = jacobians.adaptive_avg_pool2d_pattern(size, _two(m.output_size))
        else:
            self._jacobian = jacobians.avg_pool2d_pattern(size, *self._arguments())
        return self._jacobian.pattern

    def values(self, call: LayerCall) -> Tensor:
        return self._jacobian.values(call.x.dtype, call.x.device)


def _two(value: Any) -> list[Any]:
    return [value, value] if isinstance(value, int) else list(value)
