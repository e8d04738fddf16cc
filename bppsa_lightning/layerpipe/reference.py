"""Delayed SGD in one process, a mini-batch after the other: the oracle of LayerPipe's executor.

Nothing here is parallel, and nothing is shared with the executor but the definition of a delay
(`delays`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Weights = dict[str, Tensor]


class History:
    """The weights of every layer after each update, as far back as a delay reaches."""

    def __init__(self, layers: Sequence[nn.Module], reach: int) -> None:
        self._layers, self._reach = layers, reach
        self._versions: dict[int, list[Weights]] = {}
        self.updates = 0
        self._keep()

    def _keep(self) -> None:
        copies = [
            {name: p.detach().clone() for name, p in layer.named_parameters()}
            for layer in self._layers
        ]
        self._versions[self.updates] = copies
        self._versions.pop(self.updates - self._reach - 1, None)

    def updated(self) -> None:
        """Takes note of an update of all layers."""
        self.updates += 1
        self._keep()

    def weights(self, layer: int, version: int) -> Weights:
        """A layer's weights after `version` updates."""
        return self._versions[version][layer]


class MovingAverage:
    """Old weights from the new ones, without keeping them: versions="average" (LayerPipe2).

    With D_j = w(j + 1) - w(j), the change by update j, a layer of delay d keeps

        m_j = beta m_(j-1) + (1 - beta) D_j,  m_(-1) = 0,  beta = (d - 1) / (d + 1),

    the moving average whose weights are as old in the mean as those of the last d changes, and
    takes w(v) for

        w(n) - (n - v) m_(n-1) / (1 - beta^n)

    where n is the number of updates by now. LayerPipe2 (arXiv:2512.08160) replaces the stored
    weights by such an average; its own constants are not public.
    """

    def __init__(self, weights: Weights, delay: int) -> None:
        self.beta = (delay - 1) / (delay + 1) if delay else 0.0
        self.updates = 0
        self._now = weights
        self._mean = {name: torch.zeros_like(w) for name, w in weights.items()}

    def updated(self, weights: Weights) -> None:
        """Takes note of the weights after an update."""
        for name, mean in self._mean.items():
            change = weights[name] - self._now[name]
            self._mean[name] = self.beta * mean + (1 - self.beta) * change
        self._now, self.updates = weights, self.updates + 1

    def weights(self, version: int) -> Weights:
        """What is taken for the weights after `version` updates."""
        back = self.updates - version
        if not back:
            return self._now
        scale = back / (1 - self.beta**self.updates)
        return {name: w - scale * self._mean[name] for name, w in self._now.items()}


def delayed_sgd(
    layers: nn.Sequential,
    batches: Iterable[Any],
    loss: Callable[[Tensor, Any], Tensor],
    optimizer: torch.optim.Optimizer,
    delays: Sequence[int],
    *,
    versions: str = "stash",
    drains: Collection[int] = (),
    after_update: Callable[[int], None] | None = None,
) -> list[float]:
    """Trains layers on mini-batches with delayed gradients.

    Args:
        layers: the model, trained in place. For "average" each layer has to be a single operation,
            without random numbers or running statistics.
        batches: mini-batches; each one's first item is the model's input.
        loss: of the output and the batch.
        optimizer: of the model's parameters.
        delays: d_m of each layer, in updates (`layer_delays`).
        versions: "stash", or "average" for the weights in the backward (`MovingAverage`).
        drains: numbers of the mini-batches before which the pipeline drains, 0 apart.
        after_update: called with k after update k.

    Returns:
        The loss of each mini-batch.
    """
    history = History(list(layers), max(delays, default=0))
    averages = [MovingAverage(history.weights(m, 0), d) for m, d in enumerate(delays)]
    losses, drained = [], 0
    for k, batch in enumerate(batches):
        drained = k if k in drains else drained
        seen = [max(drained, k - d) for d in delays]
        forward = [history.weights(m, v) for m, v in enumerate(seen)]
        if versions == "stash":
            backward = forward
        else:
            backward = [average.weights(v) for average, v in zip(averages, seen, strict=True)]
        losses.append(_gradient(layers, forward, backward, batch, loss))
        optimizer.step()
        history.updated()
        for m, average in enumerate(averages):
            average.updated(history.weights(m, k + 1))
        if after_update is not None:
            after_update(k)
    return losses


def _gradient(
    layers: nn.Sequential,
    forward: list[Weights],
    backward: list[Weights],
    batch: Any,
    loss: Callable[[Tensor, Any], Tensor],
) -> float:
    """Writes the gradient of a mini-batch to the parameters; returns the loss."""
    pieces, x = [], batch[0]
    for layer, weights, others in zip(layers, forward, backward, strict=True):
        x = x.detach().requires_grad_(x.is_floating_point())
        leaves = {n: w.detach().requires_grad_() for n, w in weights.items()}
        y = functional_call(layer, leaves, (x.clone(),))
        if others is not weights:
            leaves = {n: w.detach().requires_grad_() for n, w in others.items()}
            pieces.append((layer, x, leaves, functional_call(layer, leaves, (x.clone(),))))
        else:
            pieces.append((layer, x, leaves, y))
        x = y
    x = x.detach().requires_grad_()
    value = loss(x, batch)
    (g,) = torch.autograd.grad(value, x)
    for layer, x, leaves, y in reversed(pieces):
        wanted = [t for t in (x, *leaves.values()) if t.requires_grad]
        grads = iter(torch.autograd.grad(y, wanted, g, allow_unused=True) if wanted else ())
        if x.requires_grad:
            g = next(grads)
        for (_, parameter), grad in zip(layer.named_parameters(), grads, strict=True):
            parameter.grad = grad if parameter.requires_grad else None
    return value.item()
