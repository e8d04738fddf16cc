"""A chain: one module whose backward is a scan."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from bppsa_lightning import planner
from bppsa_lightning._replacement import Replacement, replacements

ALGORITHMS = (*planner.ALGORITHMS, planner.SPECULATIVE)


def check_algorithm(algorithm: str) -> None:
    """Raises TypeError or ValueError unless `algorithm` is one of `ALGORITHMS`."""
    if algorithm == planner.SPECULATIVE:
        return
    if isinstance(algorithm, str) and algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: found {algorithm!r}, wanted one of {', '.join(ALGORITHMS)}")
    planner.check_algorithm(algorithm, None)


class Chain(Replacement):
    """The forward of an attached module, whose backward is a scan over Jacobians.

    Attributes:
        name, module, calls, fallback_calls, reason, last_fallback: as of `Replacement`.
        algorithm: as given to `attach`: "auto", "linear", "chunked", "blelloch" or
            "speculative"; may be set.
        cell: what is scanned, for people.
        stack: how many layers one after another, for people.
        shape: (T, B, H) of the last scanned call, None before it.
        device: where it ran.
        plan: of its backward, None before it.
    """

    cell = ""
    stack = "1"
    algorithms: tuple[str, ...] = ALGORITHMS

    def __init__(self, name: str, module: nn.Module, algorithm: str = "auto") -> None:
        super().__init__(name, module)
        self.algorithm = algorithm
        self.shape: tuple[int, int, int] | None = None
        self.device: Any = None
        self._plan: planner.Plan | None = None

    @property
    def algorithm(self) -> str:
        return self._algorithm

    @algorithm.setter
    def algorithm(self, algorithm: str) -> None:
        check_algorithm(algorithm)
        self._algorithm = algorithm

    @property
    def plan(self) -> planner.Plan | None:
        return self._plan

    @property
    def sizes(self) -> tuple[str, str, str]:
        """Steps, samples and size of the state of the last call, for people."""
        if self.shape is None:
            return "?", "?", "?"
        T, B, H = map(str, self.shape)
        return T, B, H

    def details(self) -> list[str]:
        """Lines for `explain` below its table."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """What it has learned from its calls, for a checkpoint; empty if nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name={self.name!r}, cell={self.cell!r}, "
            f"algorithm={self.algorithm!r}, shape={self.shape})"
        )


# Where a checkpoint holds what chains have learned: {name of a chain: its state_dict}.
LEARNED = "bppsa_lightning"


def learned(chains: Iterable[Chain]) -> dict[str, Any]:
    """What chains have learned, by their names, as far as they have."""
    return {chain.name: state for chain in chains if (state := chain.state_dict())}


def learn(chains: Iterable[Chain], states: Mapping[str, Any]) -> None:
    """Gives chains what those of the same names had learned."""
    for chain in chains:
        if chain.name in states:
            chain.load_state_dict(states[chain.name])


def named_chains(module: nn.Module) -> dict[str, Chain]:
    """The attached chains, by the names that their modules have in `module`."""
    return replacements(module, Chain)
