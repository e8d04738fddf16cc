"""What stands in the place of a module's forward; nothing else of the module moves."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class StandIn:
    """The forward of an attached module.

    Attributes:
        name: dotted name of the module in the one that was searched.
        module: the attached module.
        calls: forwards that were computed here; compiled ones are not counted.
        handed_over: forwards that were left to PyTorch, likewise.
        reason: why the last of those was; None if the last call was computed here.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self.calls = 0
        self.handed_over = 0
        self.reason: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} has no forward")

    def count(self, reason: str | None) -> None:
        """Notes a call: computed here, or left to PyTorch for a reason."""
        if torch.compiler.is_compiling():  # which would compile again for each new count
            return
        self.reason = reason
        if reason is None:
            self.calls += 1
        else:
            self.handed_over += 1

    def attach(self) -> None:
        """Takes the place of the module's forward."""
        self.module.__dict__["forward"] = self

    def detach(self) -> None:
        """Gives the module its own forward back, unless another one has taken its place since."""
        if self.module.__dict__.get("forward") is self:
            del self.module.__dict__["forward"]


def stand_in_of(module: nn.Module) -> StandIn | None:
    """What stands in a module's place, if anything of this package does."""
    forward = module.__dict__.get("forward")
    return forward if isinstance(forward, StandIn) else None
