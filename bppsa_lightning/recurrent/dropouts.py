"""nn.Dropout in a model with recurrent layers: PyTorch's numbers, drawn by `ops.dropout`.

It stands before and behind most recurrent layers. On a CPU PyTorch draws a number for each of an
embedding's or an output's, one after the other: beside a layer of ours a good part of a step.
"""

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from bppsa_lightning import ops
from bppsa_lightning._context import overrides_forward
from bppsa_lightning._replacement import Made, Replacement, replacement_of, replacements
from bppsa_lightning._scripting import Scriptable
from bppsa_lightning.ops.dropout import draws_as_torch


class DropoutLayer(Scriptable):
    """The forward of an nn.Dropout: the same bits, by `ops.dropout` in training.

    Its calls are not counted: `ops.dropout` leaves to PyTorch what it can't do, or not faster.
    """

    def __call__(self, input: Tensor) -> Any:
        module = self.module
        if module.training and not module.inplace:
            return ops.dropout(input, module.p)
        return type(module).forward(module, input)


def attach_dropouts(module: nn.Module, but: Collection[nn.Module], made: Made) -> list[Replacement]:
    """Attaches every nn.Dropout of a module, those in `but` left alone; returns what is new.

    None of a subclass, and none where PyTorch draws its numbers otherwise.
    """
    new: list[Replacement] = []
    for name, child in module.named_modules():
        if type(child) is not nn.Dropout or overrides_forward(child, nn.Dropout) or child in but:
            continue
        if replacement_of(child, Replacement) is None and draws_as_torch():
            new.append(made(DropoutLayer, name, child))
            new[-1].attach()
    return new


def count_dropouts(module: nn.Module) -> int:
    """How many are attached in a module."""
    return len(replacements(module, DropoutLayer))
