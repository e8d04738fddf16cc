"""A chain: one module whose backward is a scan, and what `explain` can say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bppsa_lightning import planner


@dataclass(frozen=True)
class LeftAlone:
    """A module that keeps PyTorch's own path.

    Attributes:
        name: its dotted name in the module that was searched.
        module: itself.
        reason: why, in one line.
    """

    name: str
    module: nn.Module
    reason: str


class Chain:
    """The forward of an attached module: stands in the instance's ``forward``, nothing else moves.

    The class, the parameters, the hooks and the state_dict of the module stay what they are;
    a deep copy or a pickle of the module has a chain of its own.

    Attributes:
        name: dotted name of the module in the one given to `attach`.
        module: the attached module.
        algorithm: as given to `attach`: "auto", "linear", "chunked" or "blelloch"; may be set.
        stack: how many layers one after another, for people.
        shape: (T, B, H) of the last scanned call, None before it.
        device: where it ran.
        calls: forwards that were scanned; compiled ones are not counted.
        handed_over: forwards that were left to PyTorch, likewise.
        reason: why the last of those was; None if none was.
    """

    cell = ""
    stack = "1"

    def __init__(self, name: str, module: nn.Module, algorithm: str = "auto") -> None:
        self.name = name
        self.module = module
        self.algorithm = algorithm
        self.shape: tuple[int, int, int] | None = None
        self.device: Any = None
        self.calls = 0
        self.handed_over = 0
        self.reason: str | None = None

    @property
    def algorithm(self) -> str:
        return self._algorithm

    @algorithm.setter
    def algorithm(self, algorithm: str) -> None:
        planner.check_algorithm(algorithm, None)
        self._algorithm = algorithm

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} has no forward")

    def count(self, reason: str | None) -> None:
        """Notes a call: scanned, or left to PyTorch for a reason."""
        self.reason = reason
        if torch.compiler.is_compiling():  # which would compile again for each new count
            return
        if reason is None:
            self.calls += 1
        else:
            self.handed_over += 1

    def plan(self) -> planner.Plan | None:
        """The plan of the last call's shape, or None before the first."""
        if self.shape is None:
            return None
        return planner.choose(*self.shape, self.device, self.algorithm)

    def details(self) -> list[str]:
        """Lines for `explain` below its table."""
        return []

    def attach(self) -> None:
        """Puts the module into scan mode."""
        self.module.__dict__["forward"] = self

    def detach(self) -> None:
        """Gives the module its own forward back, unless another one has taken its place since."""
        if self.module.__dict__.get("forward") is self:
            del self.module.__dict__["forward"]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name={self.name!r}, cell={self.cell!r}, "
            f"algorithm={self.algorithm!r}, shape={self.shape})"
        )
