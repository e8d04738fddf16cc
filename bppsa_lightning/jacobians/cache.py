"""Patterns that depend on sizes alone are built once: the most recent ones are kept."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

Built = TypeVar("Built", bound=Any)


class PatternCache:
    """The most recently used patterns, up to a number of bytes.

    Attributes:
        budget: bytes; a pattern that exceeds it alone is not kept.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: Hashable, build: Callable[[], Built]) -> Built:
        """What `build` returned for this key, now or before; its ``bytes`` count."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        built = build()
        with self._lock:
            if built.bytes <= self.budget and key not in self._kept:
                self._kept[key] = (built, built.bytes)
                self._bytes += built.bytes
            while self._bytes > self.budget:
                _, (_, size) = self._kept.popitem(last=False)
                self._bytes -= size
        return built

    def clear(self) -> None:
        """Forgets every pattern."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0


patterns = PatternCache(64 * 2**20)
