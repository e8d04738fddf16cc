"""An event simulation of a pipeline: every task of some mini-batches, from fill to drain.

A processor takes, of its tasks that may begin, that of the oldest mini-batch. A task begins when
what it reads is there: F the output of the layer before and the weights after k - d updates; D and
G the gradient from the layer after. A stage brings mini-batch k in before it takes the gradient of
k - d, which is what makes its delay d. Messages take no time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from bppsa_lightning.layerpipe.assignment import Assignment
from bppsa_lightning.layerpipe.costs import LayerCost
from bppsa_lightning.layerpipe.delays import layer_delays


class Task(NamedTuple):
    """A task, or one of the parts of a D; sorts as a processor takes it."""

    batch: int
    order: int  # D before G before F
    layer: int
    processor: int

    @property
    def kind(self) -> str:
        return "DGF"[self.order]


class Done(NamedTuple):
    """A task, and when it ran."""

    task: Task
    start: float
    end: float


class Simulation:
    """The tasks of a schedule.

    Args:
        costs: of the layers.
        assignment: who does what; for "pipedream" all of a layer on one processor.
        schedule: "layerpipe" or "pipedream"; PipeDream's D and G are one task for the stage before.
        batches: how many mini-batches go through.
        delays: of each layer, in updates; by default those of the stages that F is cut into.

    Attributes:
        done: every task, in the order of their beginnings.
    """

    def __init__(
        self, costs: Sequence[LayerCost], assignment: Assignment, schedule: str, batches: int,
        delays: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.costs, self.assignment, self.batches = costs, assignment, batches
        self.delays = list(delays or layer_delays(schedule, assignment.cuts, len(costs)))
        self.together = schedule == "pipedream"
        self.duration: dict[Task, float] = {}
        self.waits: dict[Task, int] = defaultdict(int)
        self.then: dict[Task, list[Task]] = defaultdict(list)
        for k in range(batches):
            for m in range(len(costs)):
                self._add(k, m)
        for k in range(batches):
            for m in range(len(costs)):
                self._connect(k, m)
        self.done = self._run()

    def _f(self, k: int, m: int) -> Task:
        return Task(k, 2, m, self.assignment.forward[m])

    def _d(self, k: int, m: int) -> list[Task]:
        return [Task(k, 0, m, p) for p, _ in self.assignment.input_gradient[m]]

    def _g(self, k: int, m: int) -> Task:
        return Task(k, 1, m, self.assignment.weight_gradient[m])

    def _add(self, k: int, m: int) -> None:
        cost = self.costs[m]
        self.duration[self._f(k, m)] = cost.forward
        self.duration[self._g(k, m)] = cost.weight_gradient
        for p, part in self.assignment.input_gradient[m]:
            self.duration[Task(k, 0, m, p)] = part * cost.input_gradient

    def _connect(self, k: int, m: int) -> None:
        """What the tasks of a layer wait for."""
        f, backward = self._f(k, m), [*self._d(k, m), self._g(k, m)]
        if m:
            self._after(self._f(k, m - 1), [f])
        update = k - self.delays[m] - 1
        if update >= 0:
            self._after(self._g(update, m), [f])
        entered = min(k + self.delays[m], self.batches - 1)
        self._after(self._f(entered, m), backward)
        if m + 1 == len(self.costs):
            return
        for above in self._d(k, m + 1):
            self._after(above, backward)
        first = self.assignment.forward[m] != self.assignment.forward[m + 1]
        if self.together and first:
            stage = self.assignment.forward[m + 1]
            for other in range(m + 1, len(self.costs)):
                if self.assignment.forward[other] == stage:
                    self._after(self._g(k, other), backward)

    def _after(self, first: Task, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.waits[task] += 1
            self.then[first].append(task)

    def _run(self) -> list[Done]:
        ready: list[list[Task]] = [[] for _ in range(self.assignment.processors)]
        for task in self.duration:
            if not self.waits[task]:
                heapq.heappush(ready[task.processor], task)
        idle = set(range(self.assignment.processors))
        running: list[tuple[float, Task]] = []
        done, now = [], 0.0
        while True:
            for p in sorted(idle):
                if ready[p]:
                    task = heapq.heappop(ready[p])
                    end = now + self.duration[task]
                    heapq.heappush(running, (end, task))
                    done.append(Done(task, now, end))
                    idle.remove(p)
            if not running:
                return done
            now, task = heapq.heappop(running)
            idle.add(task.processor)
            for other in self.then[task]:
                self.waits[other] -= 1
                if not self.waits[other]:
                    heapq.heappush(ready[other.processor], other)

    def interval(self) -> float:
        """The time between two mini-batches in steady state.

        Between the gradients of the first layer, from a quarter of the mini-batches on until those
        that the end of the data hurries.
        """
        ends = sorted(d.end for d in self.done if d.task.kind == "G" and not d.task.layer)
        a, b = len(ends) // 4, len(ends) - len(ends) // 8 - self.delays[0] - 1
        return (ends[b] - ends[a]) / (b - a)

    def fill(self) -> float:
        """Until the first gradient of the first layer is there."""
        return min(d.end for d in self.done if d.task.kind == "G" and not d.task.layer)

    def utilisation(self) -> float:
        """The part of the time in which a processor works, in the mean, in steady state."""
        work = sum(cost.total for cost in self.costs)
        return work / (self.assignment.processors * self.interval())

    def observed_delays(self) -> list[int]:
        """For each layer, k less its updates that were done when F of mini-batch k began.

        Read off the events, for the mini-batch in the middle.
        """
        k = self.batches // 2
        delays = []
        for m in range(len(self.costs)):
            begin = next(d.start for d in self.done if d.task == self._f(k, m))
            ends = [d.end for d in self.done if d.task.kind == "G" and d.task.layer == m]
            delays.append(k - sum(end <= begin for end in ends))
        return delays
