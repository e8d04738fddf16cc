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
    option_names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")

    @staticmethod
    def unsupported(module: Any) -> str | None:
        return "return_indices" if module.return_indices else None

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        return F.max_pool2d_with_indices(x, *self.options)

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        *sizes, ceil_mode = self.options
        return torch.ops.aten.max_pool2d_with_indices_backward(
            g, call.x, *(_two(v) for v in sizes), ceil_mode, call.kept
        )

    def _build_pattern(self) -> Pattern:
        self._jacobian = jacobians.max_pool2d_pattern(self.input_size, *self.options)
        return self._jacobian.pattern

    def values(self, call: LayerCall) -> Tensor:
        return side_by_side(self._jacobian.values(call.x))


class AveragePoolLayer(PoolLayer):
    kinds = {nn.AvgPool2d: (4,)}
    option_names = (
        "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override",
    )  # fmt: skip

    def _arguments(self) -> tuple[Any, ...]:
        return (*map(_two, self.options[:3]), *self.options[3:])

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        return F.avg_pool2d(x, *self._arguments()), None

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        return torch.ops.aten.avg_pool2d_backward(g.contiguous(), call.x, *self._arguments())

    def _build_pattern(self) -> Pattern:
        self._jacobian = jacobians.avg_pool2d_pattern(self.input_size, *self._arguments())
        return self._jacobian.pattern

    def values(self, call: LayerCall) -> Tensor:
        return self._jacobian.values(call.x.dtype, call.x.device)


class AdaptivePoolLayer(PoolLayer):
    kinds = {nn.AdaptiveAvgPool2d: (4,)}
    option_names = ("output_size",)

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        return F.adaptive_avg_pool2d(x, *self.options), None

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        return torch.ops.aten._adaptive_avg_pool2d_backward(g, call.x)

    def _build_pattern(self) -> Pattern:
        (size,) = self.options
        self._jacobian = jacobians.adaptive_avg_pool2d_pattern(self.input_size, _two(size))
        return self._jacobian.pattern

    def values(self, call: LayerCall) -> Tensor:
        return self._jacobian.values(call.x.dtype, call.x.device)


def _two(value: Any) -> list[Any]:
    return [value, value] if isinstance(value, int) else list(value)
