"""How long p workers take for the tasks of a training step, divided as is fastest for them.

n steps, p workers, w steps of warm-up.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bppsa_lightning.planner.plan import ceil_div, max_levels
from experiments.paper import worker_tasks
from experiments.paper.worker_tasks import Costs, Graph

ALGORITHMS = ("linear", "chunked", "blelloch", "speculative")


@dataclass(frozen=True)
class Parts:
    """How an algorithm divides n steps: into chunks or windows of `span` steps, or in levels."""

    span: int = 0
    levels: int = 0
    windows: int = 0
    warm: int = 0

    def forward(self, n: int) -> Graph:
        """Its tasks in n steps."""
        if self.windows:
            return worker_tasks.forward_windows(n, self.windows, self.warm)
        return worker_tasks.forward_walk(n)

    def backward(self, n: int) -> Graph:
        """Its tasks in n steps."""
        if self.windows:
            return worker_tasks.backward_windows(n, self.windows, self.warm)
        if self.span:
            return worker_tasks.chunked(n, self.span)
        if self.levels:
            return worker_tasks.blelloch(n, self.levels)
        return worker_tasks.backward_walk(n)


class Step:
    """A training step: the forward has ended when the backward begins."""

    def __init__(self, parts: Parts, n: int, compose: int) -> None:
        self._ways = [Costs(graph, compose) for graph in (parts.forward(n), parts.backward(n))]

    def least(self, workers: int) -> int:
        """The time that so many workers take at least."""
        return sum(way.least(workers) for way in self._ways)

    def times(self, workers: int) -> tuple[int, int]:
        """Of the forward, and of the backward."""
        forward, backward = (way.time(workers) for way in self._ways)
        return forward, backward


def divisions(algorithm: str, n: int, warm: int) -> list[Parts]:
    """What the fastest is chosen of; a walk where nothing can be divided."""
    counts = [1 << k for k in range(1, max_levels(n))]
    if algorithm == "chunked":
        found = [Parts(ceil_div(n, count)) for count in counts if count >= 4]
    elif algorithm == "blelloch":
        found = [Parts(levels=levels) for levels in range(1, max_levels(n) + 1)]
    elif algorithm == "speculative":
        most = n // warm
        fitting = sorted(K for K in {*counts, most} if 2 <= K <= most)
        found = [Parts(n // K, windows=K, warm=warm) for K in fitting]
    else:
        found = []
    return found or [Parts()]


def simulate(
    algorithm: str, n: int, workers: Sequence[int], compose: int, warm: int
) -> list[dict[str, Any]]:
    """The fastest division for each number of workers, in steps."""
    ways = [(parts, Step(parts, n, compose)) for parts in divisions(algorithm, n, warm)]
    found = []
    for p in workers:
        best = None
        for parts, step in sorted(ways, key=lambda way: way[1].least(p)):
            if best is not None and step.least(p) >= best["step"]:
                break
            forward, backward = step.times(p)
            if best is None or forward + backward < best["step"]:
                best = {
                    "algorithm": algorithm, "n": n, "workers": p, "compose": compose,
                    "forward": forward, "backward": backward, "step": forward + backward,
                    "parts": asdict(parts),
                }  # fmt: skip
        assert best is not None
        found.append(best)
    return found


def rows(sizes: Sequence[int], composes: Sequence[int], warm: int) -> list[dict[str, Any]]:
    """All that is drawn: p = 1 … n for each size, and p = n for those below."""
    lines = [(n, [1 << k for k in range(max_levels(n) + 1)]) for n in sizes]
    smaller = [1 << k for k in range(4, max_levels(max(sizes)), 2)]
    lines += [(n, [n]) for n in smaller if n not in sizes]
    return [
        row
        for n, workers in lines
        for compose in dict.fromkeys(composes)
        for algorithm in ALGORITHMS
        for row in simulate(algorithm, n, workers, compose, warm)
    ]
