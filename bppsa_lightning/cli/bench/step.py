"""One step of a whole model: forward, and a backward from a loss or from every output."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bppsa_lightning.cli.answer import WrongUsage
from bppsa_lightning.cli.bench import tensors
from bppsa_lightning.cli.bench.clock import Seconds, timed
from bppsa_lightning.cli.bench.target import calling

SEED = 0


class WholeStep:
    """A model's forward and backward on one input.

    Args:
        model: in training mode.
        inputs: of its forward, or its `training_step`'s batch.
        training_step: which of the two.
    """

    def __init__(self, model: nn.Module, inputs: Sequence[Tensor], training_step: bool) -> None:
        self.model = model
        self._device = inputs[0].device
        self._inputs = inputs
        self._given = [x.clone() for x in inputs]  # which a model may change in place
        self._training_step = training_step
        self._call = self._callable()
        self._grads: list[Tensor] | None = None
        self._found: Any = None

    def __call__(self) -> Seconds:
        """Runs one, without gradients of an earlier one."""
        self._ready()
        return timed(self._device, self.forward, self.backward)

    def _ready(self) -> None:
        """Inputs and random numbers are those of every other step; nothing is left of the last."""
        self.model.zero_grad()
        self._found = None
        for given, x in zip(self._given, self._inputs, strict=True):
            given.copy_(x)
        torch.manual_seed(SEED)

    def forward(self) -> None:
        """Calls the model."""
        self._found = self._call(*self._given)

    def backward(self) -> None:
        """From the loss, or from gradients of every output, which are those of every call."""
        outputs = tensors.with_gradients(self._found)
        if self._grads is None:
            self._grads = [self._grad(output) for output in outputs]
        torch.autograd.backward(outputs, self._grads)

    def _grad(self, output: Tensor) -> Tensor:
        """Of one output: 1 of a loss, else random numbers, whatever the output's layout."""
        if self._training_step:
            return torch.ones_like(output)
        numbers = torch.Generator().manual_seed(SEED)
        drawn = torch.randn(output.shape, generator=numbers, dtype=torch.float32, device="cpu")
        return drawn.to(output)

    def results(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Of one step, by name: outputs; gradients of parameters.

        Raises:
            Failed: the model raises. WrongUsage: nothing in its output has a gradient.
        """
        name = type(self.model).__name__
        called = "training_step" if self._training_step else "forward"
        self._ready()
        calling(f"{called} of {name}", self.forward)
        if not tensors.with_gradients(self._found):
            raise WrongUsage(f"TARGET: {called} of {name} returns nothing that has a gradient")
        outputs = {
            f"output {number}": tensor.detach().clone()
            for number, tensor in enumerate(tensors.within(self._found))
        }
        calling(f"the backward of {name}", self.backward)
        grads = {
            name: parameter.grad.clone()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }
        return outputs, grads

    def _callable(self) -> Callable[..., Any]:
        if not self._training_step:
            return self.model
        model: Any = self.model
        if not hasattr(model, "training_step"):
            raise WrongUsage(f"--training-step: {type(model).__name__} has none")

        def call(*inputs: Tensor) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Lightning's, of self.log without a Trainer
                loss = model.training_step(inputs if len(inputs) > 1 else inputs[0], 0)
            return loss["loss"] if isinstance(loss, dict) else loss

        return call
