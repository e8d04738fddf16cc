"""One process of a pipeline that never waits: schedules "layerpipe" and "pipedream".

Stage s, in its turn i: F of mini-batch i; then D and G of mini-batch i - d, d its delay; then the G
that others lent it; then the update i - d. So the forward of mini-batch k finds the weights after
k - d updates without looking for them. Before a validation, a checkpoint and the end the pipeline
drains: turns without a forward, until every mini-batch that entered has updated every layer.

All waiting is for messages. A turn waits only for tasks of earlier intervals (turn i of stage s is
interval s + i), or for those that stand earlier in the same: F, D, own G, lent G, update. So no
circle can close.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bppsa_lightning.layerpipe import movable
from bppsa_lightning.layerpipe.links import Links
from bppsa_lightning.layerpipe.plan import Plan
from bppsa_lightning.layerpipe.stage import Piece, Stage, add_gradients


class DelayedPipeline:
    """The tasks of one stage.

    Args:
        stage: its layers.
        index: which stage.
        plan: of the whole pipeline.
        links: to the other processes.
        chain: all layers; of those of others only sizes are read.

    Attributes:
        entered: mini-batches that have entered this stage.
        drained: how many had at the last drain.
    """

    def __init__(
        self, stage: Stage, index: int, plan: Plan, links: Links, chain: nn.Sequential
    ) -> None:
        self.stage, self.index, self.plan, self.links, self.chain = stage, index, plan, links, chain
        self.delay = plan.delays[index]
        self.entered = self.drained = 0
        self._lent_by, self._lent_to = plan.lent_by(index), plan.lent_to(index)

    @property
    def is_last(self) -> bool:
        return self.index == len(self.plan.delays) - 1

    def forward(self, x: Tensor | None) -> Tensor:
        """F of the next mini-batch; its input is that of the chain, or comes from the stage before.

        Returns:
            The stage's output, sent on to the next stage.
        """
        if self.index:
            x = self.links.channel("F", self.index - 1).receive()
        assert x is not None
        x = x if self.index else x.clone()  # a loader may fill its buffer again
        y = self.stage.forward(self.entered, x)
        if not self.is_last:
            self.links.channel("F", self.index + 1).send(y)
        self.entered += 1
        return y

    def due(self, turn: int) -> int | None:
        """The mini-batch whose backward is due in a turn, if one is."""
        k = turn - self.delay
        return k if self.drained <= k < self.entered else None

    def turns_to_drain(self) -> range:
        """The turns without a forward that are left, once no mini-batch enters any more."""
        last = max([self.delay, *(self.plan.offset(layer) for layer in self._lent_to)])
        return range(self.entered, self.entered + last if self.entered > self.drained else 0)

    def backward(self, turn: int, g: Tensor | None = None) -> None:
        """D and G of the mini-batch that is due, and what others lent; gradients are in `.grad`.

        Args:
            turn: which.
            g: the gradient of the chain's output, in the last stage.
        """
        k = self.due(turn)
        if k is not None:
            if not self.is_last:
                g = self._received_gradient(k)
            assert g is not None
            self._gradients(k, g)
        for layer in self._lent_to:
            if self.drained <= turn - self.plan.offset(layer) < self.entered:
                self._help(layer, turn - self.plan.offset(layer))
        if k is not None:
            for layer in self._lent_by:
                self._take_back(layer)

    def _gradients(self, k: int, g: Tensor) -> None:
        share = self.plan.shared.get(self.index)
        dx = self.stage.input_gradients(k, g, self._lend, but_the_first=share is not None)
        if share is not None:
            self._send_shared(k, share)
        elif dx is not None:
            self.links.channel("D", self.index - 1).send(dx)
        self.stage.weight_gradients(k, self._lent_by)

    def _send_shared(self, k: int, share: float) -> None:
        """D of the first layer for some of the samples; the stage before does the others'."""
        under_way, index = self.stage.under_way[k], self.stage.span.start
        piece, layer = under_way.pieces[0], self.chain[index]
        assert piece.g is not None
        weight = self.stage.weights.of(next(layer.parameters()), under_way.version).clone()
        here = round(share * len(piece.g))
        with self.stage.trace.task("D", index, k, self.stage.weights.version):
            size = (here, *piece.x.shape[1:])
            dx = movable.input_gradient(layer, piece.g[:here], weight, size)
        channel = self.links.channel("D", self.index - 1)
        for tensor in (dx, piece.g[here:], weight):
            channel.send(tensor)

    def _received_gradient(self, k: int) -> Tensor:
        """The gradient of the stage's output, which is completed here if D of it is shared."""
        channel = self.links.channel("D", self.index + 1)
        dx = channel.receive()
        if self.index + 1 not in self.plan.shared:
            return dx
        g, weight = channel.receive(), channel.receive()
        index = self.stage.span.stop
        with self.stage.trace.task("D", index, k, -1):
            size = (len(g), *dx.shape[1:])
            rest = movable.input_gradient(self.chain[index], g, weight, size)
        return torch.cat([dx, rest])

    def _lend(self, layer: int, piece: Piece) -> None:
        """Sends what G of a layer needs to the stage that does it."""
        if layer in self._lent_by:
            channel = self.links.channel("G", self.plan.lent[layer])
            assert piece.g is not None
            channel.send(piece.x)
            channel.send(piece.g)

    def _help(self, layer: int, k: int) -> None:
        """G of a layer of another stage."""
        owner = self.plan.stage_of(layer)
        channel = self.links.channel("G", owner)
        x, g = channel.receive(), channel.receive()
        with self.stage.trace.task("G", layer, k, -1):
            grads = movable.weight_gradient(self.chain[layer], x, g)
        for grad in grads:
            self.links.channel("W", owner).send(grad)

    def _take_back(self, layer: int) -> None:
        channel = self.links.channel("W", self.plan.lent[layer])
        parameters = [p for p in self.chain[layer].parameters(recurse=False)]
        grads = [channel.receive() for _ in parameters]
        wanted = [g if p.requires_grad else None for p, g in zip(parameters, grads, strict=True)]
        add_gradients(parameters, wanted)
