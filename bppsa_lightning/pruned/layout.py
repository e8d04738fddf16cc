"""Layers between pruned ones, so that the samples stay innermost from one to the next.

A sparse layer's output lies with the samples innermost. Elementwise layers of PyTorch keep that; a
pooling or a batch norm would copy the image into another layout and back. Each of them is the same
computation on a view that PyTorch has a kernel for:

- pooling treats samples and channels alike. With the two exchanged, the image is channels-last.
- batch norm treats all pixels and samples of a channel alike: an image of one sample, contiguous.
  In training it is not PyTorch's (see norm.py).

B samples, C channels, H and W rows and columns.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bppsa_lightning._context import masks_written
from bppsa_lightning._replacement import Replacement
from bppsa_lightning.pruned.norm import normalized


def samples_innermost(x: Any) -> bool:
    """Whether x is an image (B, C, H, W) as a sparse layer writes it."""
    if not isinstance(x, Tensor) or x.dim() != 4 or x.layout != torch.strided:
        return False
    B, C, H, W = x.shape
    return B > 1 and x.stride() == (1, H * W * B, W * B, B) and not x.is_contiguous()


def _swapped(forward: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        output = forward(x.transpose(0, 1))
    except RuntimeError:  # which names the sizes as they are only here
        return forward(x)
    if isinstance(output, tuple):  # with indices: places in a channel's image of one sample
        return tuple(t.transpose(0, 1) for t in output)
    return output.transpose(0, 1)


def _as_one_sample(forward: Callable[[Tensor], Any], x: Tensor) -> Any:
    B, C, H, W = x.shape
    output = forward(x.permute(1, 2, 3, 0).reshape(1, C, H * W, B))
    return output.view(C, H, W, B).permute(3, 0, 1, 2)


_KEEPS: dict[type[nn.Module], Callable[[Callable[[Tensor], Any], Tensor], Any]] = {
    nn.MaxPool2d: _swapped,
    nn.AvgPool2d: _swapped,
    nn.AdaptiveAvgPool2d: _swapped,
    nn.AdaptiveMaxPool2d: _swapped,
    nn.BatchNorm2d: _as_one_sample,
}


class LayoutLayer(Replacement):
    """The forward of a pooling or batch norm between sparse layers: the same, without copies.

    An input in another layout takes the module's own forward, unchanged.
    """

    module: Any

    @staticmethod
    def supports(module: nn.Module) -> bool:
        """Whether a module can have one: of a known class, its forward its own."""
        return type(module) in _KEEPS and "forward" not in module.__dict__

    def __call__(self, input: Any) -> Any:
        kind = type(self.module)
        forward = kind.forward.__get__(self.module)
        if not samples_innermost(input):
            self.record_call("its input has another layout")
            return forward(input)
        self.record_call(None)
        output = normalized(self.module, input) if kind is nn.BatchNorm2d else None
        return _KEEPS[kind](forward, input) if output is None else output

    def with_relu(self, input: Any) -> tuple[Tensor | None, int]:
        """The output of a batch norm and of a ReLU behind it, in one pass, and 2.

        (None, 0) where the layer must run by itself.
        """
        output = None
        if type(self.module) is nn.BatchNorm2d and samples_innermost(input):
            masks_written(self.module, input)
            output = normalized(self.module, input, relu=True)
        if output is None:
            return None, 0
        self.record_call(None)
        return output, 2
