"""One process of a pipeline whose every update waits for the whole gradient: "gpipe", delays=False.

A mini-batch is divided into micro-batches. All of them go forward, the loss is that of their joined
outputs (so it need not be a mean), and their gradients come back one after the other. Of each, the
input's gradient is sent on before those of the weights are computed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bppsa_lightning.layerpipe.links import Links
from bppsa_lightning.layerpipe.stage import Stage


class SynchronousPipeline:
    """The tasks of one stage.

    Args:
        stage: its layers.
        index: which stage.
        stages: how many there are.
        links: to the other processes.
        micro_batches: into how many parts a mini-batch is divided; a smaller one has as many parts
            as samples.

    Attributes:
        entered: mini-batches so far.
    """

    def __init__(
        self, stage: Stage, index: int, stages: int, links: Links, micro_batches: int
    ) -> None:
        self.stage, self.index, self.stages, self.links = stage, index, stages, links
        self.micro_batches = micro_batches
        self.entered = 0
        self._sizes: list[int] = []

    def forward(self, x: Tensor | None) -> Tensor:
        """F of all micro-batches of the next mini-batch; its input is that of the chain.

        Returns:
            The stage's output of all samples.
        """
        outputs = []
        for part, micro_batch in enumerate(self._micro_batches(x)):
            y = self.stage.forward((self.entered, part), micro_batch)
            if self.index < self.stages - 1:
                self.links.channel("F", self.index + 1).send(y)
            outputs.append(y)
        self._sizes = [len(y) for y in outputs]
        self.entered += 1
        return torch.cat(outputs) if self.index == self.stages - 1 else outputs[-1]

    def _micro_batches(self, x: Tensor | None) -> Iterator[Tensor]:
        """The micro-batches, whose number goes before them."""
        parts: tuple[Tensor, ...] = ()
        if self.index == 0:
            assert x is not None
            parts = torch.tensor_split(x, max(1, min(self.micro_batches, len(x))))
            count = torch.tensor([len(parts)], dtype=torch.int64, device="cpu")
        else:
            count = self.links.channel("F", self.index - 1).receive()
        if self.index < self.stages - 1:
            self.links.channel("F", self.index + 1).send(count)
        for part in range(int(count)):
            yield parts[part] if parts else self.links.channel("F", self.index - 1).receive()

    def backward(self, g: Tensor | None = None) -> None:
        """D and G of all micro-batches; the gradients add up in `.grad`.

        Args:
            g: the gradient of the chain's output, in the last stage.
        """
        grads = torch.split(g, self._sizes) if g is not None else ()
        for part in range(len(self._sizes)):
            k = (self.entered - 1, part)
            above = grads[part] if grads else self.links.channel("D", self.index + 1).receive()
            dx = self.stage.input_gradients(k, above)
            if dx is not None:
                self.links.channel("D", self.index - 1).send(dx)
            self.stage.weight_gradients(k)
