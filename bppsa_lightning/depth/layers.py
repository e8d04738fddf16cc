"""What a layer is to a chain over depth: forward, transposed Jacobian, parameter gradients.

B samples, N numbers a sample. States have their layers' shapes, (B, C, H, W) or (B, N).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bppsa_lightning import jacobians
from bppsa_lightning.jacobians.elementwise import batch_norm_scale
from bppsa_lightning.jacobians.geometry import convolution_padding
from bppsa_lightning.jacobians.pattern import Pattern
from bppsa_lightning.ops.layers import apply_csr

Forward = tuple[Tensor, Any]
Values = Callable[[], Tensor]


class Layer:
    """One layer of a chain, in one shape of input.

    Args:
        module: the layer.
        input_size: of its input, without batch.

    Attributes:
        output_size: likewise of its output; empty before the first call.
    """

    kinds: tuple[type[nn.Module], ...] = ()
    output_size: tuple[int, ...] = ()

    def __init__(self, module: Any, input_size: tuple[int, ...]) -> None:
        self.module = module
        self.input_size = input_size

    @staticmethod
    def refusal(module: Any) -> str | None:
        """Why a module of these kinds is not supported as it is configured now; None if it is."""
        return None

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        """The output, and what `vjp` and `values` need beside x."""
        raise NotImplementedError

    def again(self, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        """The output once more, from what the first forward kept."""
        return self.forward(x, parameters)[0]

    def vjp(self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        """Jᵀ g, by PyTorch's own kernel: g of the output's shape -> the input's shape."""
        raise NotImplementedError

    def apply(
        self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor], values: Values
    ) -> Tensor:
        """As `vjp`, with samples side by side: g (N', B) -> (N, B); `values` are those of Jᵀ."""
        B = x.shape[0]
        found = self.vjp(g.t().reshape(B, *self.output_size), x, kept, parameters)
        return found.reshape(B, -1).t()

    def parameter_grads(
        self, g: Tensor, x: Tensor, parameters: Sequence[Tensor], wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        """Gradients of the parameters from g, that of the output; None where not wanted."""
        return []

    def pattern(self, parameters: Sequence[Tensor]) -> Pattern:
        """Of Jᵀ: the same object as long as it fits."""
        raise NotImplementedError

    def values(self, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        """Of Jᵀ: (nnz,), or (B, nnz) with samples side by side in memory."""
        raise NotImplementedError


def side_by_side(values: Tensor) -> Tensor:
    """(B, …) numbers as (B, nnz), samples side by side in memory."""
    return values.reshape(values.shape[0], -1).t().contiguous().t()


class _Weighted(Layer):
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

    def values(self, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        assert self._jacobian is not None
        return self._jacobian.values(parameters[0])

    def _build(self, keep: Tensor) -> jacobians.WeightJacobian:
        raise NotImplementedError


class LinearLayer(_Weighted):
    kinds = (nn.Linear,)

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        return F.linear(x, *parameters), None

    def vjp(self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return g @ parameters[0]

    def apply(
        self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor], values: Values
    ) -> Tensor:
        return parameters[0].t() @ g

    def parameter_grads(
        self, g: Tensor, x: Tensor, parameters: Sequence[Tensor], wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        found = [g.T @ x if wanted[0] else None]
        return found + [g.sum(0) if w else None for w in wanted[1:]]

    def _build(self, keep: Tensor) -> jacobians.WeightJacobian:
        return jacobians.linear_pattern(keep)


class ConvolutionLayer(_Weighted):
    kinds = (nn.Conv1d, nn.Conv2d)

    @staticmethod
    def refusal(module: Any) -> str | None:
        if module.padding_mode != "zeros":
            return f"padding_mode {module.padding_mode!r}"
        if isinstance(module.padding, str) and len(set(sum(_paddings(module), ()))) > 1:
            return "padding 'same' with an even kernel"
        return None

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        m = self.module
        function = F.conv2d if isinstance(m, nn.Conv2d) else F.conv1d
        bias = parameters[1] if len(parameters) > 1 else None
        return function(x, parameters[0], bias, m.stride, m.padding, m.dilation, m.groups), None

    def vjp(self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return self._backward(g, x, parameters[0], [True, False, False])[0]

    def parameter_grads(
        self, g: Tensor, x: Tensor, parameters: Sequence[Tensor], wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        if not any(wanted):
            return [None] * len(parameters)
        mask = [False, wanted[0], len(wanted) > 1 and wanted[1]]
        return self._backward(g, x, parameters[0], mask)[1 : 1 + len(parameters)]

    def _backward(self, g: Tensor, x: Tensor, weight: Tensor, mask: list[bool]) -> list[Any]:
        m = self.module
        padding = [before for before, _ in _paddings(m)]
        spatial = [0] * len(padding)
        return list(
            torch.ops.aten.convolution_backward(
                g, x, weight, [weight.shape[0]], m.stride, padding, m.dilation, False, spatial,
                m.groups, mask,
            )
        )  # fmt: skip

    def _build(self, keep: Tensor) -> jacobians.WeightJacobian:
        m = self.module
        build = jacobians.conv2d_pattern if isinstance(m, nn.Conv2d) else jacobians.conv1d_pattern
        return build(keep, self.input_size, m.stride, m.padding, m.dilation, m.groups)


def _paddings(module: Any) -> list[tuple[int, int]]:
    """(before, after) of each axis of a convolution."""
    if not isinstance(module.padding, str):
        return [(p, p) for p in module.padding]
    dims = len(module.kernel_size)
    ones = (1,) * (2 - dims)
    found = convolution_padding(
        module.padding, ones + module.kernel_size, ones + module.stride, ones + module.dilation
    )
    return found[2 - dims :]


class _Fixed(Layer):
    """The pattern depends on the sizes alone."""

    _pattern: Pattern | None = None

    def pattern(self, parameters: Sequence[Tensor]) -> Pattern:
        if self._pattern is None:
            self._pattern = self._build_pattern()
        return self._pattern

    def _build_pattern(self) -> Pattern:
        raise NotImplementedError


class _Diagonal(_Fixed):
    """Jᵀ is diagonal."""

    def _build_pattern(self) -> Pattern:
        return Pattern.diagonal(math.prod(self.input_size))

    def apply(
        self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor], values: Values
    ) -> Tensor:
        scale = values()
        return g * (scale.t() if scale.dim() == 2 else scale.unsqueeze(1))


class ElementwiseLayer(_Diagonal):
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


class DropoutLayer(_Diagonal):
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


class ReshapeLayer(_Diagonal):
    kinds = (nn.Flatten, nn.Identity)

    @staticmethod
    def refusal(module: Any) -> str | None:
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


class BatchNormLayer(_Diagonal):
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)

    @staticmethod
    def refusal(module: Any) -> str | None:
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


class _Pool(_Fixed):
    """Windows over images."""

    def apply(
        self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor], values: Values
    ) -> Tensor:
        pattern = self.pattern(parameters)
        if pattern.selects:
            return apply_csr(pattern, values(), g)
        return super().apply(g, x, kept, parameters, values)


class MaxPoolLayer(_Pool):
    kinds = (nn.MaxPool2d,)

    @staticmethod
    def refusal(module: Any) -> str | None:
        return "return_indices" if module.return_indices else None

    def __init__(self, module: Any, input_size: tuple[int, ...]) -> None:
        super().__init__(module, input_size)
        m = module
        self._window = (m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode)

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        return F.max_pool2d_with_indices(x, *self._window)

    def vjp(self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return torch.ops.aten.max_pool2d_with_indices_backward(
            g, x, *(_two(v) for v in self._window[:4]), self._window[4], kept
        )

    def _build_pattern(self) -> Pattern:
        self._jacobian = jacobians.max_pool2d_pattern(self.input_size, *self._window)
        return self._jacobian.pattern

    def values(self, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return side_by_side(self._jacobian.values(x))


class AveragePoolLayer(_Pool):
    kinds = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)

    def _arguments(self) -> tuple[Any, ...]:
        m = self.module
        sizes = (_two(m.kernel_size), _two(m.stride), _two(m.padding))
        return (*sizes, m.ceil_mode, m.count_include_pad, m.divisor_override)

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        return self.module(x), None

    def vjp(self, g: Tensor, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        if isinstance(self.module, nn.AdaptiveAvgPool2d):
            return torch.ops.aten._adaptive_avg_pool2d_backward(g, x)
        return torch.ops.aten.avg_pool2d_backward(g.contiguous(), x, *self._arguments())

    def _build_pattern(self) -> Pattern:
        m, size = self.module, self.input_size
        if isinstance(m, nn.AdaptiveAvgPool2d):
            self._jacobian = jacobians.adaptive_avg_pool2d_pattern(size, _two(m.output_size))
        else:
            self._jacobian = jacobians.avg_pool2d_pattern(size, *self._arguments())
        return self._jacobian.pattern

    def values(self, x: Tensor, kept: Any, parameters: Sequence[Tensor]) -> Tensor:
        return self._jacobian.values(x.dtype, x.device)


def _two(value: Any) -> list[Any]:
    return [value, value] if isinstance(value, int) else list(value)


_LAYERS: dict[type[nn.Module], type[Layer]] = {
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


def refusal(module: nn.Module) -> str | None:
    """Why a module cannot be a layer of a chain as it stands; None if it can."""
    kind = _LAYERS.get(type(module))
    if kind is None:
        return "no Jacobian for it"
    if "forward" in module.__dict__:
        return "its forward has been replaced"
    hooks = (
        module._forward_hooks, module._backward_hooks, module._backward_pre_hooks,
        *(hook for hook in _foreign_pre_hooks(module)),
    )  # fmt: skip
    return "it has hooks" if any(hooks) else kind.refusal(module)


def _foreign_pre_hooks(module: nn.Module) -> list[Callable]:
    pruning = torch.nn.utils.prune.BasePruningMethod
    return [h for h in module._forward_pre_hooks.values() if not isinstance(h, pruning)]


def parameters_of(module: Any) -> list[Tensor]:
    """Weight and bias of a supported module, those it has: in the order of `parameter_grads`."""
    found = (getattr(module, "weight", None), getattr(module, "bias", None))
    return [p for p in found if p is not None]


def fits_input(module: nn.Module, dims: int) -> bool:
    """Whether a batch of so many dimensions is what a layer's Jacobian is made for."""
    return dims in _DIMS.get(type(module), range(2, 6))


def layer_of(module: nn.Module, input_size: tuple[int, ...]) -> Layer:
    """The layer of a module that `refusal` has nothing against."""
    return _LAYERS[type(module)](module, input_size)
