"""A stage: consecutive layers, and their three tasks for each mini-batch that is under way.

F (forward) runs layer by layer, each from a leaf of its own, so that D (the gradient of a layer's
input) and G (that of its weights) are tasks that can be done apart, later, or elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import _backward as split

from bppsa_lightning.layerpipe import movable
from bppsa_lightning.layerpipe.trace import Trace
from bppsa_lightning.layerpipe.weights import Weights


@dataclass
class Piece:
    """A layer of a mini-batch under way."""

    layer: nn.Module
    x: Tensor
    y: Tensor
    g: Tensor | None = None  # the gradient of y
    groups: list[dict[str, Any]] = field(default_factory=list)  # what is left to do for G

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.layer.parameters() if p.requires_grad]


@dataclass
class UnderWay:
    """A mini-batch, or a part of one, between its forward and its backward."""

    version: int  # of the weights that its forward used
    pieces: list[Piece]


class Stage:
    """The layers of one process.

    Args:
        layers: of the whole chain.
        span: which of them.
        weights: the versions of their parameters.
        trace: where the tasks are noted.

    Attributes:
        under_way: {mini-batch: its graph}, from F to G.
    """

    def __init__(
        self, layers: Sequence[nn.Module], span: range, weights: Weights, trace: Trace
    ) -> None:
        self.layers = {index: layers[index] for index in span}
        self.span, self.weights, self.trace = span, weights, trace
        self.under_way: dict[Any, UnderWay] = {}

    def inputs(self) -> dict[int, int]:
        """{id: index} of the layers' inputs that are under way."""
        return {
            id(piece.x): index
            for under_way in self.under_way.values()
            for index, piece in zip(self.span, under_way.pieces, strict=True)
        }

    def before_update(self) -> None:
        """To be called before the optimizer changes the parameters."""
        self.weights.before_update(self._in_flight())

    def after_update(self) -> None:
        """To be called after it."""
        for index in self.layers:
            with self.trace.task("U", index, self.weights.version, self.weights.version):
                pass
        self.weights.after_update(self._in_flight())

    def _in_flight(self) -> set[int]:
        return {u.version for u in self.under_way.values()}

    def forward(self, k: Any, x: Tensor) -> Tensor:
        """F of all layers: the output of the stage for mini-batch k, without a graph."""
        pieces = []
        self.weights.locate()
        for index, layer in self.layers.items():
            x = x.detach()
            if x.is_floating_point() or x.is_complex():
                x.requires_grad_(index > 0)
            with self.trace.task("F", index, k, self.weights.version), self.weights.saving():
                y = _called(index, layer, x)
            pieces.append(Piece(layer, x, y))
            x = y
        self.under_way[k] = UnderWay(self.weights.version, pieces)
        return x.detach()

    def input_gradients(
        self,
        k: Any,
        g: Tensor,
        reached: Callable[[int, Piece], None] | None = None,
        but_the_first: bool = False,
    ) -> Tensor | None:
        """D of all layers, the last first.

        Args:
            k: the mini-batch.
            g: the gradient of the stage's output.
            reached: called with each layer and its piece, once the gradient of its output is known.
            but_the_first: leaves out D of the stage's first layer.

        Returns:
            The gradient of the stage's input; None for the first stage, or if D was left out.
        """
        found: Tensor | None = g
        for index in reversed(self.span):
            piece = self.under_way[k].pieces[index - self.span.start]
            assert found is not None
            piece.g = found
            if reached is not None:
                reached(index, piece)
            if index == (self.span.start if but_the_first else 0):
                return None
            task = self.trace.task("D", index, k, self.weights.version)
            with task, self._as_in_forward(k, piece):
                found = _input_gradient(piece)
        return found

    def weight_gradients(self, k: Any, lent: Sequence[int] = ()) -> None:
        """G of all layers but those that are lent to others, added to `.grad`; k is done then."""
        for index in reversed(self.span):
            piece = self.under_way[k].pieces[index - self.span.start]
            if index not in lent and piece.parameters:
                task = self.trace.task("G", index, k, self.weights.version)
                with task, self._as_in_forward(k, piece):
                    _weight_gradient(piece)
        del self.under_way[k]

    def _as_in_forward(self, k: Any, piece: Piece) -> AbstractContextManager[Any]:
        return self.weights.used(self.under_way[k].version, piece.layer)


def check_output(index: int, layer: nn.Module, y: object) -> None:
    """Raises a TypeError if a layer's output is no tensor."""
    if not isinstance(y, Tensor):
        raise TypeError(
            f"chain: layer {index} ({type(layer).__name__}) returned a {type(y).__name__}, wanted "
            "a tensor from every layer"
        )


def _called(index: int, layer: nn.Module, x: Tensor) -> Tensor:
    """A layer's output, of a leaf."""
    try:
        y: Tensor = layer(x.clone() if changes_its_input(layer) else x)
    except RuntimeError as error:
        if "leaf Variable that requires grad" not in str(error):
            raise
        raise RuntimeError(
            f"chain: layer {index} ({type(layer).__name__}) changes its input in place; a layer "
            "that does has to say so by an attribute: inplace = True"
        ) from error
    return y


def changes_its_input(layer: nn.Module) -> bool:
    """Whether a layer may work in place, which autograd refuses on a leaf."""
    return any(getattr(module, "inplace", False) for module in layer.modules())


def _is_single(layer: nn.Module) -> bool:
    """Whether a layer's output is one operation of its input and weights."""
    return movable.is_movable(layer)


def _input_gradient(piece: Piece) -> Tensor:
    x, y, g, parameters = piece.x, piece.y, piece.g, piece.parameters
    if not x.requires_grad or not y.requires_grad:
        return torch.zeros_like(x)
    if not parameters or _is_single(piece.layer):
        dx: Tensor | None
        (dx,) = torch.autograd.grad(y, x, g, retain_graph=bool(parameters), allow_unused=True)
    else:
        y = y.clone() if y._is_view() else y  # the next call detaches it in place
        assert g is not None
        found, piece.groups = split.stage_backward_input([y], [g], [x], iter(parameters))
        dx, x.grad = found[0], None
    return torch.zeros_like(x) if dx is None else dx


def _weight_gradient(piece: Piece) -> None:
    if piece.groups:
        split.stage_backward_weight(iter(piece.parameters), piece.groups)
        return
    if not piece.y.requires_grad:  # it depends on no weight, or on none that was trained then
        return
    parameters = piece.parameters
    grads = torch.autograd.grad(piece.y, parameters, piece.g, allow_unused=True)
    add_gradients(parameters, grads)


def add_gradients(parameters: Sequence[nn.Parameter], grads: Sequence[Tensor | None]) -> None:
    """Adds gradients to `.grad`, as autograd accumulates."""
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is not None:
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad
