"""Out-of-order backward: all activation gradients first, the weight gradients after them.

Back-propagation takes the two tasks of a layer in turns: D, the gradient of its input, and G, that
of its weights. Only the D form a chain; each G needs no more than the D of the layer behind it. So
the G may wait, run in any order, or run on a second thread while the chain goes on (Oh et al.,
Out-Of-Order BackProp, EuroSys 2022, arXiv:2110.00929). A scan over the Jacobians leaves the
weight gradients in the same place: after all activation gradients, independent of each other.

The gradients are those of autograd. What it costs is memory: the gradient of each layer's output
lives until the layer's G has run, and so do all activations.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

ORDERS = ("falling", "rising")


@dataclass(frozen=True)
class Tape:
    """A forward pass as its layers left it in autograd's graph.

    Attributes:
        layers: the layers, nested nn.Sequential taken apart.
        edges: where the gradient of the input and then of each layer's output arrives; None where
            none is needed, which is from the input up to the first layer with trained weights.
    """

    layers: Sequence[nn.Module]
    edges: Sequence[GradientEdge | None]

    def weights(self, layer: int) -> list[nn.Parameter]:
        """The trained weights of a layer."""
        return [p for p in self.layers[layer].parameters() if p.requires_grad]


def forward(layers: nn.Sequential, x: Tensor) -> tuple[Tensor, Tape]:
    """The usual forward pass, and what the backward needs of it.

    Args:
        layers: any layers, each from one tensor to one.
        x: the input, of the first layer's shape.

    Raises:
        TypeError: a layer returns something else than a tensor.
        ValueError: two layers share a weight.
    """
    parts, edges = list(_parts(layers)), [_edge(x)]
    _check_unshared(parts)
    for number, layer in enumerate(parts):
        x = layer(x)
        if not isinstance(x, Tensor):
            raise TypeError(
                f"layers: layer {number} ({type(layer).__name__}) returned {type(x).__name__}, "
                "wanted one tensor; wrap it in a module that returns one"
            )
        # Noted before the next layer, which may overwrite x, as an in-place ReLU does.
        edges.append(_edge(x))
    return x, Tape(parts, edges)


def backward(
    tape: Tape, grad: Tensor, order: str = "falling", helper: Executor | None = None
) -> Tensor | None:
    """Adds the gradients of all trained weights to their `.grad`, D first and G after.

    A layer made of several operations with weights, as a residual block, runs a part of its D
    again in its G, because autograd starts from the layer's output both times.

    Args:
        tape: of the forward pass; good for one backward.
        grad: gradient of the last layer's output, of its shape.
        order: of the G: "falling", from the last layer to the first, as the chain of D makes them
            possible; or "rising", so that the layers which the next forward needs first are first.
        helper: runs each G as soon as its layer's D is done, while the chain goes on, and `order`
            means nothing then. None: after all D.

    Returns:
        The gradient of the input; None if it needs none.

    Raises:
        ValueError: an unknown order, or a layer overwrites a view of another layer's output.
    """
    if order not in ORDERS:
        raise ValueError(f"order: found {order!r}, wanted one of {', '.join(ORDERS)}")
    if helper is not None:
        return _beside(tape, grad, helper)
    grads, x_grad = activation_gradients(tape, grad)
    for layer in sorted(grads, reverse=order == "falling"):
        weight_gradient(tape, layer, grads.pop(layer))
    return x_grad


def activation_gradients(tape: Tape, grad: Tensor) -> tuple[dict[int, Tensor], Tensor | None]:
    """All D, in one call of autograd, which computes nothing that is not asked for.

    Args:
        tape: of the forward pass.
        grad: gradient of the last layer's output.

    Returns:
        The gradient of the output of each layer with trained weights, by the layer's number, and
        that of the input, None if it needs none.

    Raises:
        ValueError: a layer overwrites a view of another layer's output.
    """
    stops = _stops(tape)
    if not stops:
        return {}, None
    found = _gradients(tape, len(tape.layers), stops, grad)
    grads = dict(zip(stops, found, strict=True))
    x_grad = grads.pop(0, None)
    return {stop - 1: g for stop, g in grads.items()}, x_grad


def weight_gradient(tape: Tape, layer: int, grad: Tensor) -> None:
    """G of a layer, from the gradient of its output: adds to `.grad`, frees its activations."""
    weights, edge = tape.weights(layer), tape.edges[layer + 1]
    if not weights or edge is None:
        return
    found = torch.autograd.grad(edge, weights, grad, allow_unused=True)
    for weight, change in zip(weights, found, strict=True):
        if change is not None:
            weight.grad = change if weight.grad is None else weight.grad + change


def _beside(tape: Tape, grad: Tensor, helper: Executor) -> Tensor | None:
    """`backward` with each G handed to `helper`."""
    running: list[Future[None]] = []
    at = len(tape.layers)
    before = -1
    for stop in _stops(tape):
        (arriving,) = _gradients(tape, at, [stop], grad)
        # Only now, as G frees what this D has read.
        if before >= 0:
            running.append(helper.submit(weight_gradient, tape, before, grad))
        at, grad, before = stop, arriving, stop - 1
    if before >= 0:
        running.append(helper.submit(weight_gradient, tape, before, grad))
    for each in running:
        each.result()
    return grad if at == 0 else None


def _stops(tape: Tape) -> list[int]:
    """Edges at which a gradient is wanted, from the last: outputs of trained layers, the input."""
    trained = [e for e in range(1, len(tape.edges)) if tape.weights(e - 1) and tape.edges[e]]
    return [*reversed(trained), *([0] if tape.edges[0] else [])]


def _gradients(tape: Tape, at: int, stops: list[int], grad: Tensor) -> tuple[Tensor, ...]:
    """The gradients at edges `stops`, from that at edge `at`; keeps the graph for the G."""
    edges = [edge for stop in stops if (edge := tape.edges[stop])]
    start = [edge for edge in (tape.edges[at],) if edge]
    found = torch.autograd.grad(start, edges, [grad], retain_graph=True, allow_unused=True)
    for stop, g in zip(stops, found, strict=True):
        if g is None:
            raise ValueError(
                f"layers: no gradient reaches the input of layer {stop}: a layer behind it "
                "overwrites a view of it, or does not use it; make in-place layers inplace=False"
            )
    return found


def _parts(layers: nn.Sequential) -> Iterator[nn.Module]:
    for layer in layers:
        if type(layer) is nn.Sequential:
            yield from _parts(layer)
        else:
            yield layer


def _check_unshared(parts: Sequence[nn.Module]) -> None:
    # From the output of the later layer, autograd reaches a shared weight through the earlier too.
    owner: dict[nn.Parameter, int] = {}
    for number, layer in enumerate(parts):
        for name, weight in layer.named_parameters():
            first = owner.setdefault(weight, number)
            if first != number:
                raise ValueError(
                    f"layers: layer {number} ({type(layer).__name__}) shares {name!r} with layer "
                    f"{first}, wanted weights of its own in each; use loss.backward() here"
                )


def _edge(x: Tensor) -> GradientEdge | None:
    return get_gradient_edge(x) if x.requires_grad else None
