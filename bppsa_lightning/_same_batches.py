"""The same mini-batches in every process: random numbers of the loaders, apart from the model's.

Each process of a pipeline reads the whole data and has to meet the same batches. What shuffles and
augments draws from torch's, Python's and NumPy's global generators, from which the stages draw
differently (dropout). So loaders run with generators of their own, which start as those of rank 0.
(The processes of a chain draw the same everywhere, and begin with the same generators.)
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def generators() -> dict[str, Any]:
    """The states of torch's, Python's and NumPy's generators."""
    states = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def set_generators(states: dict[str, Any]) -> None:
    """Sets torch's, Python's and NumPy's."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(states["numpy"])


class LoaderRandomness:
    """The generators of all loaders of a training."""

    def __init__(self) -> None:
        self.states = generators()

    @contextmanager
    def used(self) -> Iterator[None]:
        """What draws in here draws from them."""
        before = generators()
        set_generators(self.states)
        try:
            yield
        finally:
            self.states = generators()
            set_generators(before)


class SameBatches:
    """A loader whose iterations draw from the generators of a `LoaderRandomness`.

    All else is the loader's own.
    """

    def __init__(self, loader: Any, randomness: LoaderRandomness) -> None:
        self._loader, self._randomness = loader, randomness

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_randomness"):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_loader", "_randomness"):
            super().__setattr__(name, value)
        else:  # as Lightning does with the workers of a run that has ended
            setattr(self._loader, name, value)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        with self._randomness.used():
            batches = iter(self._loader)
        return self._each(batches)

    def _each(self, batches: Iterator[Any]) -> Iterator[Any]:
        end = object()
        while True:
            with self._randomness.used():
                batch = next(batches, end)
            if batch is end:
                return
            yield batch
