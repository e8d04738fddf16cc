"""Where a step finds the tensors that it reads, for a backward that calls it again.

A module may be given other tensors than it had in the forward: by `torch.func.functional_call`,
whose tensors are its own for one call, or by itself, where it computes a weight in each forward.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from types import CellType
from typing import Any

ABSENT = object()

# What holds a value (a dict, a list, a cell, or something with attributes), where, and the value.
Place = tuple[Any, Any, Any]

# Held by whoever changes a step's variables for a while: a probe, which undoes what its calls
# change, whoever has changed it; and a backward that puts tensors back.
_alone = RLock()


def alone() -> RLock:
    """The lock, which is this process's own."""
    return _alone


def _nobody_else() -> None:
    """A process that forks leaves its other threads behind, and with them what they held."""
    global _alone
    _alone = RLock()


os.register_at_fork(after_in_child=_nobody_else)


class Places:
    """Some places, with what they held in the forward."""

    def __init__(self, places: Sequence[Place] = ()) -> None:
        self._places = places

    @contextmanager
    def as_they_were(self) -> Iterator[None]:
        """While they hold that again."""
        if all(value_at(owner, name) is value for owner, name, value in self._places):
            yield
            return
        with alone():
            now = [(owner, name, value_at(owner, name)) for owner, name, _ in self._places]
            try:
                _put_all(self._places)
                yield
            finally:
                _put_all(now)


def _put_all(places: Sequence[Place]) -> None:
    for owner, name, value in places:
        if value_at(owner, name) is not value:
            put(owner, name, value)


def value_at(owner: Any, name: Any) -> Any:
    """What a place holds; `ABSENT` if it is not there."""
    if isinstance(owner, dict):
        return owner.get(name, ABSENT)
    if isinstance(owner, list | deque):
        return owner[name] if name < len(owner) else ABSENT
    if isinstance(owner, CellType):
        return owner.cell_contents if owner != CellType() else ABSENT
    return getattr(owner, name, ABSENT)


def put(owner: Any, name: Any, value: Any) -> None:
    """Makes a place hold a value, or, with `ABSENT`, none; lists stay as long as they are."""
    if isinstance(owner, dict):
        if value is ABSENT:
            owner.pop(name, None)
        else:
            owner[name] = value
    elif isinstance(owner, list | deque):
        if name < len(owner):
            owner[name] = value
    elif isinstance(owner, CellType):
        if value is ABSENT:
            del owner.cell_contents
        else:
            owner.cell_contents = value
    elif value is ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
