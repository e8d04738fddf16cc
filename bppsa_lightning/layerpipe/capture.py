"""The user's training step around a chain whose layers run elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bppsa_lightning._same_batches import generators, set_generators


class StepRandomness:
    """Random numbers of the user's step up to its call of the chain, the same wherever it runs.

    The first stage takes the chain's input from a step, the last one the loss: a noise that is in
    both has to be one. The stages' layers draw from each process' own generators.
    """

    def __init__(self, states: dict[str, Any], device: torch.device) -> None:
        self._device, self._states = device, states
        self._own: dict[str, Any] | None = None

    def around(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """A step that draws from them, until it calls the chain."""

        def drawing() -> Any:
            self._own = generators(self._device)
            set_generators(self._states, self._device)
            try:
                return step()
            finally:
                self.leave()

        return drawing

    def leave(self) -> None:
        """The step calls the chain: what is drawn from now on is this process' own."""
        if self._own is not None:
            self._states = generators(self._device)
            set_generators(self._own, self._device)
            self._own = None


class _Captured(BaseException):
    """Leaves a step where it calls the chain; no handler of exceptions is meant."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


@contextmanager
def chain_is(chain: nn.Sequential, call: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, a call of the chain is a call of a function."""
    chain.forward = call  # type: ignore[assignment]
    try:
        yield
    finally:
        del chain.forward


def input_of(chain: nn.Sequential, name: str, step: Callable[[], Any]) -> Tensor:
    """What a step gives to its chain; the step ends there.

    Raises:
        TypeError: it is no tensor.
        RuntimeError: the step ended without a call, or the input depends on parameters.
    """

    def call(*inputs: Any) -> Tensor:
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
            kinds = ", ".join(type(x).__name__ for x in inputs) or "nothing"
            raise TypeError(f"chain: {name!r} was called with {kinds}, wanted one tensor")
        raise _Captured(inputs[0])

    try:
        with chain_is(chain, call):
            step()
    except _Captured as captured:
        refuse_parameters_before(captured.x, name)
        return captured.x
    raise RuntimeError(_not_called(name))


def refuse_parameters_before(x: Tensor, name: str) -> None:
    """Raises a RuntimeError if the input of a chain depends on parameters that are trained."""
    for leaf in _leaves(x.grad_fn):
        if isinstance(leaf, nn.Parameter):
            raise RuntimeError(
                f"chain: the input of {name!r} depends on a parameter of size {tuple(leaf.shape)}, "
                "wanted none before the chain: that gradient would be lost. Compute it in a layer "
                "of the chain, or under torch.no_grad()"
            )


def _not_called(name: str) -> str:
    return f"chain: training_step did not call {name!r}; it has to, as self.{name}(x), once"


class Output:
    """Stands for the chain in the step of the last stage: it returns what the pipeline has made.

    Args:
        name: the chain's.
        y: its output, a leaf whose gradient the loss leaves.
        called: at its call.
        inputs: {id: index} of the layers' inputs, as the stage has made them.
    """

    def __init__(
        self, name: str, y: Tensor, called: Callable[[], Any] = lambda: None,
        inputs: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.y, self._called = name, y, called
        self.inputs = inputs or {}
        self.calls = 0

    def __call__(self, *_: Any) -> Tensor:
        self.calls += 1
        self._called()
        if self.calls > 1:
            raise RuntimeError(
                f"chain: training_step called {self.name!r} twice, wanted one call in a step"
            )
        return self.y.clone()  # which the step may change in place, as it may the chain's own

    def loss_of(
        self, step: Callable[[], Any], chain: nn.Sequential, others: Mapping[int, str],
        call: Callable[[Tensor], Tensor] | None = None,
    ) -> Any:  # fmt: skip
        """What a step returns that calls the chain, and is given this instead.

        Args:
            step: a training step without its arguments.
            others: {id: name} of the parameters of other stages.
            call: in place of this.

        Raises:
            RuntimeError: the step did not call the chain, returned no loss, or one that depends on
                parameters of other stages, or on what layers of this one are given.
        """
        with chain_is(chain, call or self):
            found = step()
        if not self.calls:
            raise RuntimeError(_not_called(self.name))
        loss = found["loss"] if isinstance(found, Mapping) else found
        if loss is None:
            raise RuntimeError(
                "training_step: found None, wanted a loss: the other processes of the pipeline "
                "have begun this mini-batch. To leave it out: a loss of 0 times the output"
            )
        for leaf in _leaves(loss.grad_fn if others or self.inputs else None):
            if (layer := self.inputs.get(id(leaf))) is not None:
                raise RuntimeError(
                    f"chain: the loss depends on the input of layer {layer} of {self.name!r}, "
                    "which a hook may have kept, wanted one of the chain's output alone: that "
                    "gradient would be lost. For a penalty: a layer that adds its gradient in its "
                    "backward (torch.autograd.Function)"
                )
            if (name := others.get(id(leaf))) is not None:
                raise RuntimeError(
                    f"chain: the loss depends on {name!r}, a parameter of another process, wanted "
                    f"one of the output of {self.name!r} alone: that gradient would be lost. For a "
                    "penalty: the optimizer's weight_decay, or on_before_optimizer_step, which "
                    "each process runs for its own"
                )
        return found

    def gradient(self) -> Tensor:
        """What the loss has left, after its backward."""
        if self.y.grad is None:
            raise RuntimeError(
                f"chain: the loss does not depend on the output of {self.name!r}, or is detached"
            )
        return self.y.grad


def _leaves(node: Any) -> Iterator[Tensor]:
    """The leaves of a graph."""
    nodes, seen = [node], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        nodes += [below for below, _ in node.next_functions]
