"""The user's training step around a chain whose layers run elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


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
        RuntimeError: the step ended without a call.
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
        return captured.x
    raise RuntimeError(_not_called(name))


def _not_called(name: str) -> str:
    return f"chain: training_step did not call {name!r}; it has to, as self.{name}(x), once"


class Output:
    """Stands for the chain in the step of the last stage: it returns what the pipeline has made.

    Args:
        name: the chain's.
        y: its output, a leaf whose gradient the loss leaves.
    """

    def __init__(self, name: str, y: Tensor) -> None:
        self.name, self.y = name, y
        self.calls = 0

    def __call__(self, *_: Any) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError(
                f"chain: training_step called {self.name!r} twice, wanted one call in a step"
            )
        return self.y.clone()  # which the step may change in place, as it may the chain's own

    def check(self) -> None:
        """Raises if the step did not ask for it."""
        if not self.calls:
            raise RuntimeError(_not_called(self.name))

    def gradient(self) -> Tensor:
        """What the loss has left, after its backward."""
        if self.y.grad is None:
            raise RuntimeError(
                f"chain: the loss does not depend on the output of {self.name!r}, or is detached"
            )
        return self.y.grad
