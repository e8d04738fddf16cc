"""Linear layers and convolutions in a chain over depth: the Jacobian's values are weights."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bppsa_lightning import jacobians
from bppsa_lightning.depth.layer import DepthLayer, Forward, LayerCall, Values
from bppsa_lightning.jacobians import Pattern
from bppsa_lightning.jacobians.geometry import convolution_padding


class WeightedLayer(DepthLayer):
    """Linear layers and convolutions: the weights are the values."""

    _jacobian: jacobians.WeightJacobian | None = None
    _kept = 0  # weights that have a place in the pattern
    _left_out: Tensor | None = None  # those that have none, if there are any

    def pattern(self, parameters: Sequence[Tensor]) -> Pattern:
        weight = parameters[0].detach()
        if self._jacobian is None or not self._fits(weight):
            keep = weight != 0
            self._jacobian = self._build(keep)
            left_out = ~keep
            self._kept = int(keep.sum())
            self._left_out = None if self._kept == keep.numel() else left_out
        return self._jacobian.pattern

    def _fits(self, weight: Tensor) -> bool:
        """Whether the pattern has a place for every weight, and not twice as many places.

        On a GPU the host waits for the answer, once.
        """
        weights = weight.count_nonzero()
        if self._left_out is None:
            return 2 * int(weights) >= self._kept
        if self._left_out.device != weight.device:
            return False
        without = ((weight != 0) & self._left_out).count_nonzero()
        without, weights = torch.stack([without, weights]).tolist()
        return without == 0 and 2 * weights >= self._kept

    def values(self, call: LayerCall) -> Tensor:
        assert self._jacobian is not None
        return self._jacobian.values(call.parameters[0])

    def _build(self, keep: Tensor) -> jacobians.WeightJacobian:
        raise NotImplementedError


class LinearLayer(WeightedLayer):
    kinds = {nn.Linear: (2,)}

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        return F.linear(x, *parameters), None

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        return g @ call.parameters[0]

    def apply(self, g: Tensor, call: LayerCall, values: Values) -> Tensor:
        return call.parameters[0].t() @ g

    def parameter_grads(
        self, g: Tensor, call: LayerCall, wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        weight = [g.T @ call.x if wanted[0] else None]
        return weight + [g.sum(0) if w else None for w in wanted[1:]]

    def _build(self, keep: Tensor) -> jacobians.WeightJacobian:
        return jacobians.linear_pattern(keep)


class ConvolutionLayer(WeightedLayer):
    kinds = {nn.Conv1d: (3,), nn.Conv2d: (4,)}
    option_names = ("stride", "padding", "dilation", "groups")

    @classmethod
    def options_of(cls, module: Any) -> tuple[Any, ...]:
        dims = len(module.kernel_size)
        *sizes, groups = super().options_of(module)
        return (*((v,) * dims if isinstance(v, int) else v for v in sizes), groups)

    @staticmethod
    def unsupported(module: Any) -> str | None:
        if module.padding_mode != "zeros":
            return f"padding_mode {module.padding_mode!r}"
        if isinstance(module.padding, str):
            options = ConvolutionLayer.options_of(module)
            if len(set(sum(_paddings(module.kernel_size, options), ()))) > 1:
                return "padding 'same' with an even kernel"
        return None

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        function = F.conv2d if isinstance(self.module, nn.Conv2d) else F.conv1d
        bias = parameters[1] if len(parameters) > 1 else None
        return function(x, parameters[0], bias, *self.options), None

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        return self._backward(g, call, [True, False, False])[0]

    def parameter_grads(
        self, g: Tensor, call: LayerCall, wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        if not any(wanted):
            return [None] * len(wanted)
        mask = [False, wanted[0], len(wanted) > 1 and wanted[1]]
        return self._backward(g, call, mask)[1 : 1 + len(wanted)]

    def _backward(self, g: Tensor, call: LayerCall, mask: list[bool]) -> list[Any]:
        weight, (stride, _, dilation, groups) = call.parameters[0], self.options
        padding = [before for before, _ in _paddings(tuple(weight.shape[2:]), self.options)]
        spatial = [0] * len(padding)
        return list(
            torch.ops.aten.convolution_backward(
                g, call.x, weight, [weight.shape[0]], stride, padding, dilation, False, spatial,
                groups, mask,
            )
        )  # fmt: skip

    def _build(self, keep: Tensor) -> jacobians.WeightJacobian:
        of_images = isinstance(self.module, nn.Conv2d)
        build = jacobians.conv2d_pattern if of_images else jacobians.conv1d_pattern
        return build(keep, self.input_size, *self.options)


def _paddings(kernel: tuple[int, ...], options: Sequence[Any]) -> list[tuple[int, int]]:
    """(before, after) of each axis of a convolution."""
    stride, padding, dilation, _ = options
    if not isinstance(padding, str):
        return [(p, p) for p in padding]
    of_two = [(1, *sizes)[-2:] for sizes in (kernel, stride, dilation)]
    return convolution_padding(padding, *of_two)[-len(kernel) :]
