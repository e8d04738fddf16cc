"""What a layer is to a chain over depth: forward, transposed Jacobian, parameter gradients.

B samples, N numbers a sample. States have their layers' shapes, (B, C, H, W) or (B, N).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from bppsa_lightning.jacobians import Pattern

Forward = tuple[Tensor, Any]
Values = Callable[[], Tensor]
ANY_DIMS = range(2, 6)


class LayerCall(NamedTuple):
    """What a layer's forward leaves for its backward.

    Attributes:
        x: the input.
        kept: what else is needed, as `DepthLayer.forward` returned it.
        parameters: weight and bias, those that there are.
    """

    x: Tensor
    kept: Any
    parameters: Sequence[Tensor]


class DepthLayer:
    """One layer of a chain, in one shape of input, with the options that its module has now.

    Args:
        module: the layer.
        input_size: of its input, without batch.

    Attributes:
        kinds: the classes of modules, each with the dimensions that its input can have, B counted.
        option_names: attributes of the modules that results depend on; what a class lacks is None.
        options: their values; a backward has those of its forward.
        reads_input: whether the backward needs the numbers of the input, or its shape alone.
        output_size: as `input_size`, of the output; empty before the first call.
    """

    kinds: Mapping[type[nn.Module], Collection[int]] = {}
    option_names: Sequence[str] = ()
    reads_input = True
    output_size: tuple[int, ...] = ()

    def __init__(self, module: Any, input_size: tuple[int, ...]) -> None:
        self.module = module
        self.input_size = input_size
        self.options = self.options_of(module)

    @classmethod
    def options_of(cls, module: Any) -> tuple[Any, ...]:
        """The values of `option_names` as they are now."""
        values = (getattr(module, name, None) for name in cls.option_names)
        return tuple(tuple(v) if isinstance(v, list) else v for v in values)

    def is_of(self, module: Any) -> bool:
        """Whether it is that of a module with its present options."""
        return self.module is module and self.options == self.options_of(module)

    @staticmethod
    def can_begin(module: Any) -> bool:
        """Whether a run may begin with a module: it changes its input as little as the run does.

        And PyTorch keeps the input for the backward, as the run does, so that nobody else changes
        it until then.
        """
        return True

    @staticmethod
    def unsupported(module: Any) -> str | None:
        """Why a module of these kinds is not supported as it is configured now; None if it is."""
        return None

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Forward:
        """The output, and what the backward needs beside x and the parameters."""
        raise NotImplementedError

    def again(self, call: LayerCall) -> Tensor:
        """The output once more, from what the first forward kept."""
        return self.forward(call.x, call.parameters)[0]

    def vjp(self, g: Tensor, call: LayerCall) -> Tensor:
        """Jᵀ g, by PyTorch's own kernel: g of the output's shape -> the input's shape."""
        raise NotImplementedError

    def apply(self, g: Tensor, call: LayerCall, values: Values) -> Tensor:
        """As `vjp`, with samples side by side: g (N', B) -> (N, B); `values` are those of Jᵀ."""
        B = g.shape[1]
        return self.vjp(g.t().reshape(B, *self.output_size), call).reshape(B, -1).t()

    def parameter_grads(
        self, g: Tensor, call: LayerCall, wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        """Gradients of the parameters from g, that of the output; None where not wanted."""
        return []

    def pattern(self, parameters: Sequence[Tensor]) -> Pattern:
        """Of Jᵀ: the same object as long as it fits."""
        raise NotImplementedError

    def values(self, call: LayerCall) -> Tensor:
        """Of Jᵀ: (nnz,), or (B, nnz) with samples side by side in memory."""
        raise NotImplementedError


def side_by_side(values: Tensor) -> Tensor:
    """(B, …) numbers as (B, nnz), samples side by side in memory."""
    return values.reshape(values.shape[0], -1).t().contiguous().t()


class FixedLayer(DepthLayer):
    """The pattern depends on the sizes alone."""

    _pattern: Pattern | None = None

    def pattern(self, parameters: Sequence[Tensor]) -> Pattern:
        if self._pattern is None:
            self._pattern = self._build_pattern()
        return self._pattern

    def _build_pattern(self) -> Pattern:
        raise NotImplementedError


class DiagonalLayer(FixedLayer):
    """Jᵀ is diagonal."""

    def _build_pattern(self) -> Pattern:
        return Pattern.diagonal(math.prod(self.input_size))

    def apply(self, g: Tensor, call: LayerCall, values: Values) -> Tensor:
        scale = values()
        return g * (scale.t() if scale.dim() == 2 else scale.unsqueeze(1))
