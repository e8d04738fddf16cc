"""One training step of a recurrence as tasks, and when a number of workers has done them.

n steps, H state. Backward, a step is g_lo = A g_hi + b, with the map (A, b) of the time steps
(lo, hi]; maps compose (reference.py). A task makes one result from others: a state, a gradient (a
product of a matrix and a vector), or the map of two neighbours (a product of two matrices). The
graphs are those of csrc/scan/tree.h and bppsa_lightning/windows/; what nobody needs is not made.
"""

from heapq import heapify, heappop, heappush
from operator import add
from typing import NamedTuple

STEP, COMPOSE = "step", "compose"
Result = tuple[str, int, int]


class Task(NamedTuple):
    kind: str
    result: Result
    needs: tuple[Result, ...]


class Graph:
    """Tasks, each after those whose results it needs."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.waits_for: list[list[int]] = []
        self._made: dict[Result, int] = {}

    def add(self, kind: str, result: Result, *needs: Result) -> Result:
        """A task; of `needs`, what no task has made is given."""
        self.waits_for.append([self._made[need] for need in needs if need in self._made])
        self._made.setdefault(result, len(self.tasks))
        self.tasks.append(Task(kind, result, needs))
        return result


class Costs:
    """What a graph's tasks take: steps one, compositions `compose`.

    Attributes:
        work: the time that one worker takes.
        depth: the time that any number of workers takes at least.
    """

    def __init__(self, graph: Graph, compose: int) -> None:
        self.waits_for = graph.waits_for
        self.costs = [compose if task.kind == COMPOSE else 1 for task in graph.tasks]
        self._then: list[list[int]] = [[] for _ in self.costs]
        for task, others in enumerate(graph.waits_for):
            for other in others:
                self._then[other].append(task)
        # Of each task: the least time from its begin to the end of all.
        self._urgency = [0] * len(self.costs)
        for task in range(len(self.costs) - 1, -1, -1):
            behind = max((self._urgency[other] for other in self._then[task]), default=0)
            self._urgency[task] = self.costs[task] + behind
        self.work, self.depth = sum(self.costs), max(self._urgency, default=0)

    def least(self, workers: int) -> int:
        """The time that so many workers take at least."""
        return max(-(-self.work // workers), self.depth)

    def time(self, workers: int) -> int:
        """When the last task ends."""
        ends = map(add, self.schedule(workers), self.costs)
        return max(ends, default=0)

    def schedule(self, workers: int) -> list[int]:
        """When each task begins.

        List scheduling: a worker that is free takes the most urgent task that can begin, and stays
        with it to its end.
        """
        waits = [len(others) for others in self.waits_for]
        ready = [(-self._urgency[task], task) for task, count in enumerate(waits) if not count]
        heapify(ready)
        running: list[tuple[int, int]] = []  # when it ends, task
        begins, now = [0] * len(waits), 0
        while True:
            while ready and len(running) < workers:
                _, task = heappop(ready)
                begins[task] = now
                heappush(running, (now + self.costs[task], task))
            if not running:
                return begins
            now = running[0][0]
            while running and running[0][0] == now:
                for other in self._then[heappop(running)[1]]:
                    waits[other] -= 1
                    if not waits[other]:
                        heappush(ready, (-self._urgency[other], other))


def forward_walk(n: int) -> Graph:
    """States 1 … n, one step after the other."""
    graph = Graph()
    for t in range(1, n + 1):
        graph.add(STEP, ("state", 0, t), ("state", 0, t - 1))
    return graph


def backward_walk(n: int) -> Graph:
    """Gradients n - 1 … 0, one step after the other."""
    graph = Graph()
    _replay(graph, 0, n)
    return graph


def chunked(n: int, chunk: int) -> Graph:
    """Each chunk's map, the carries from chunk to chunk, and each chunk replayed from its carry.

    The last chunk's carry is given, so it is replayed at once; the first passes its on to none.
    """
    graph = Graph()
    edges = [*range(0, n, chunk), n]
    chunks = list(zip(edges, edges[1:], strict=False))
    for lo, hi in chunks[1:-1]:
        for t in range(hi - 2, lo - 1, -1):
            graph.add(COMPOSE, _map(t, hi), _map(t, t + 1), _map(t + 1, hi))
    _replay(graph, *chunks.pop())
    for lo, hi in chunks[:0:-1]:
        graph.add(STEP, _grad(lo), _map(lo, hi), _grad(hi))
    for lo, hi in chunks:
        _replay(graph, lo, hi)
    return graph


def blelloch(n: int, levels: int) -> Graph:
    """Up-sweep over segments of two steps, gradients from root to root, down-sweep, replay.

    The first node of each level needs no map, a lone root neither.
    """
    graph = Graph()
    tree = [[(lo, min(lo + (2 << level), n)) for lo in range(0, n, 2 << level)]
            for level in range(levels)]  # fmt: skip
    for level, nodes in enumerate(tree):
        for lo, hi in nodes[1:]:
            middle = lo + (1 << level)
            if middle < hi:
                graph.add(COMPOSE, _map(lo, hi), _map(lo, middle), _map(middle, hi))
    for lo, hi in tree[-1][:0:-1]:
        graph.add(STEP, _grad(lo), _map(lo, hi), _grad(hi))
    for level in range(levels - 1, 0, -1):
        for lo, hi in tree[level]:
            middle = lo + (1 << level)
            if middle < hi:
                graph.add(STEP, _grad(middle), _map(middle, hi), _grad(hi))
    for lo, hi in tree[0]:
        _replay(graph, lo, hi)
    return graph


def forward_windows(n: int, windows: int, warm: int) -> Graph:
    """Each window from `warm` steps before it; the first from the state that is given.

    All of them meet: nothing is walked again, and comparing two states costs nothing.
    """
    graph = Graph()
    (_, head), *others = _segments(n, windows)
    if n % windows:
        (_, head), *others = others
    for k, (lo, hi) in enumerate([(warm, head), *others]):
        for t in range(lo - warm + 1, hi + 1):
            graph.add(STEP, ("state", k, t), ("state", k, t - 1))
    return graph


def backward_windows(n: int, windows: int, warm: int) -> Graph:
    """Each window's own gradients; what leaves it is followed in the one before, `warm` steps."""
    graph = Graph()
    segments = _segments(n, windows)
    for k, (lo, hi) in enumerate(segments):
        for t in range(hi - 1, lo - 1, -1):
            graph.add(STEP, ("own", k, t), _map(t, t + 1), ("own", k, t + 1))
    for k, (lo, hi) in enumerate(segments[:-1]):
        handed: tuple[Result, ...] = (("own", k + 1, hi), ("own", k, lo))  # beside which it is 0?
        for t in range(hi - 1, max(lo, hi - warm) - 1, -1):
            handed = (graph.add(STEP, ("handed", k, t), _map(t, t + 1), *handed),)
    return graph


def _segments(n: int, windows: int) -> list[tuple[int, int]]:
    """As `windows.Cut` has them: what fits no window comes first."""
    span = n // windows
    edges = [*range(n - windows * span, n + 1, span)]
    edges = edges if edges[0] == 0 else [0, *edges]
    return list(zip(edges, edges[1:], strict=False))


def _replay(graph: Graph, lo: int, hi: int) -> None:
    for t in range(hi - 1, lo - 1, -1):
        graph.add(STEP, _grad(t), _map(t, t + 1), _grad(t + 1))


def _map(lo: int, hi: int) -> Result:
    return ("map", lo, hi)


def _grad(t: int) -> Result:
    return ("grad", t, t)
