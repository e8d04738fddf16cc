"""LayerPipe's assignment: which processor does which part of which task.

With delayed gradients all tasks of an interval are independent, so the interval is the load of the
busiest processor. Each kind of task is a chain, divided over the processors in order at cuts of its
own: F; D, in which a layer may be cut in two parts for two consecutive processors (inter-layer); G,
apart from D (intra-layer). The smallest interval is found by bisection; whether one is long enough
is decided exactly, by dynamic programming over how far F, G and D can be brought by each processor.

LayerPipe's own algorithm is not public (arXiv:2108.06629 states the two ideas); this one finds the
best assignment of the model above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from bppsa_lightning.layerpipe.costs import LayerCost
from bppsa_lightning.layerpipe.pipedream import check_processors, interval, partition

PRECISION = 1e-7  # of the interval, relative


@dataclass(frozen=True)
class Assignment:
    """Who does what.

    Attributes:
        processors: how many.
        forward: the processor of each layer's F.
        input_gradient: (processor, fraction) of each layer's D, one or two, consecutive.
        weight_gradient: the processor of each layer's G.
    """

    processors: int
    forward: tuple[int, ...]
    input_gradient: tuple[tuple[tuple[int, float], ...], ...]
    weight_gradient: tuple[int, ...]

    @property
    def cuts(self) -> tuple[int, ...]:
        """The layers whose F begins a stage, but the first."""
        return tuple(m for m, (a, b) in enumerate(pairwise(self.forward), 1) if a != b)

    def loads(self, costs: Sequence[LayerCost]) -> list[float]:
        """What each processor does for one mini-batch."""
        loads = [0.0] * self.processors
        for m, cost in enumerate(costs):
            loads[self.forward[m]] += cost.forward
            loads[self.weight_gradient[m]] += cost.weight_gradient
            for processor, fraction in self.input_gradient[m]:
                loads[processor] += fraction * cost.input_gradient
        return loads

    def interval(self, costs: Sequence[LayerCost]) -> float:
        """The time from one mini-batch to the next, in steady state."""
        return max(self.loads(costs))

    def utilisation(self, costs: Sequence[LayerCost]) -> float:
        """The part of the time in which a processor works, in the mean."""
        return sum(self.loads(costs)) / (self.processors * self.interval(costs))

    def communication(self, costs: Sequence[LayerCost]) -> float:
        """Numbers that go from one processor to another for a mini-batch.

        A layer's input goes to every other processor that does its F or G, from where the F of the
        layer before was; its output's gradient to every processor that does a part of its D, or its
        G, from where the D of the layer after was, each its part. G's result goes back to the
        processor of F, and the weights from there to every other that does a part of D.
        """
        total = 0.0
        for m, cost in enumerate(costs):
            f, g = self.forward[m], self.weight_gradient[m]
            source = self.forward[m - 1] if m else f
            total += cost.input_size * len({f, g} - {source})
            needs = dict(self.input_gradient[m]) if cost.input_gradient else {}
            total += cost.weight_size * (len(set(needs) - {f}) + (f != g))
            if cost.weight_gradient:
                needs[g] = 1.0
            made = dict(self.input_gradient[m + 1]) if m + 1 < len(costs) else {f: 1.0}
            away = sum(max(0.0, part - made.get(p, 0.0)) for p, part in needs.items())
            total += cost.output_size * away
        return total


def as_pipedream(costs: Sequence[LayerCost], cuts: Sequence[int], processors: int) -> Assignment:
    """All tasks of a layer on the processor of its stage."""
    stage = [sum(m >= cut for cut in cuts) for m in range(len(costs))]
    return Assignment(
        processors, tuple(stage), tuple(((s, 1.0),) for s in stage), tuple(stage)
    )  # fmt: skip


def assign(
    costs: Sequence[LayerCost],
    processors: int,
    *,
    intra: bool = True,
    inter: bool = True,
    cuts: Sequence[int] | None = None,
    movable: Sequence[bool] | None = None,
) -> Assignment:
    """The assignment with the smallest interval.

    Args:
        costs: of the layers.
        processors: how many.
        intra: whether D and G of a layer may be on different processors; else all but parts of D
            stay with its F.
        inter: whether a layer's D may be cut in two.
        cuts: the first layer of every stage of F but the first, if they are fixed.
        movable: for the executor: whether a layer's D and G can be done away from its F. Then every
            processor has an F; a part of D of the first layer of a stage may go to the processor
            before, and G of its last layers to the processor after, nothing else.

    Raises:
        ValueError: more processors than layers.
    """
    check_processors(processors, len(costs))
    if not intra and not inter:
        given = partition(costs, processors) if cuts is None else cuts
        return as_pipedream(costs, given, processors)
    search = _Search(costs, processors, intra, inter, cuts, movable)
    given = partition(costs, processors) if cuts is None else cuts
    enough, low = interval(costs, given), sum(c.total for c in costs) / processors
    best = search.within(enough) or as_pipedream(costs, given, processors)
    while enough - low > PRECISION * enough:
        middle = (enough + low) / 2
        found = search.within(middle)
        if found is None:
            low = middle
        else:
            best, enough = found, min(middle, found.interval(costs))
    return best


class _Search:
    """Whether an interval is long enough: how far D can be brought, for every pair (F, G).

    State (a, c) after p processors: they have done F of the first a layers and G of the first c.
    More of D done is never worse, but for the rule that a layer's D has two parts at most: who
    begins within a layer must finish it. So of each state the most and, in case it ends within a
    layer, that layer's beginning are kept; whatever else could be reached is no better than one of
    them.
    """

    def __init__(
        self, costs: Sequence[LayerCost], processors: int, intra: bool, inter: bool,
        cuts: Sequence[int] | None, movable: Sequence[bool] | None,
    ) -> None:  # fmt: skip
        self.costs, self.processors = costs, processors
        self.intra, self.inter = intra, inter
        self.cuts, self.movable = cuts, movable
        self.f = _sums([c.forward for c in costs])
        self.d = _sums([c.input_gradient for c in costs])
        self.g = _sums([c.weight_gradient for c in costs])
        self.count = len(costs)
        self.allowed = self._allowed()

    def _allowed(self) -> Tensor:
        """Which steps (a0, c0, a, c) a processor may take, whatever its load."""
        n = self.count + 1
        a0, c0, a, c = torch.meshgrid(*[torch.arange(n, device="cpu")] * 4, indexing="ij")
        allowed = (a >= a0) & (c >= c0)
        if not self.intra:
            allowed &= (c == a) & (c0 == a0)
        if self.movable is not None:
            # G of the layers from c to a goes to the next processor.
            pairs = zip(self.costs, self.movable, strict=True)
            stays = [bool(cost.weight_gradient) and not movable for cost, movable in pairs]
            last = [max([0, *(i + 1 for i in range(end) if stays[i])]) for end in range(n)]
            allowed &= (a > a0) & (c <= a) & (c >= a0) & (c >= torch.tensor(last, device="cpu")[a])
        return allowed

    def within(self, limit: float) -> Assignment | None:
        """An assignment whose interval is at most `limit`, if there is one."""
        n = self.count + 1
        spare = limit * (1 + 1e-13)
        load = self.f[None, None, :, None] - self.f[:, None, None, None]
        load = load + self.g[None, None, None, :] - self.g[None, :, None, None]
        left = torch.where(self.allowed & (load <= spare), spare - load, -torch.inf)
        done = torch.full((2, n, n), -torch.inf, dtype=torch.float64, device="cpu")
        done[:, 0, 0] = 0.0
        steps = []
        for p in range(self.processors):
            reached = self._reached(done, left)
            most, origin = reached.flatten(0, 2).max(0)
            if self.cuts is not None or self.movable is not None:
                most = self._at_cut(most, p)
            floors = self._floor(most)
            done = torch.stack([most, floors])
            steps.append((done, origin))
        if done[0, -1, -1] < self.d[-1] * (1 - 1e-12):
            return None
        return self._assignment(steps)

    def _reached(self, done: Tensor, left: Tensor) -> Tensor:
        """How far D comes with each step from each state: (2, a0, c0, a, c)."""
        start = done[..., None, None]
        end = torch.clamp(start + left, max=self.d[-1].item())
        if not self.inter:
            return self._floor(end)
        return torch.where(end >= self._ceiling(done)[..., None, None], end, -torch.inf)

    def _at_cut(self, most: Tensor, p: int) -> Tensor:
        """Leaves the states in which processor p may end."""
        here = torch.arange(self.count + 1, device="cpu")
        if self.cuts is not None:
            end = [*self.cuts, self.count][p]
            most = torch.where((here == end)[:, None], most, -torch.inf)
        if self.movable is not None:
            # D is done up to the F's cut, and perhaps a part of the layer after it.
            pairs = zip(self.costs, self.movable, strict=True)
            far = [self.inter and m and bool(c.input_gradient) for c, m in pairs] + [False]
            furthest = torch.stack([self.d[i + far[i]] for i in range(self.count + 1)])[:, None]
            most = torch.where(most >= self.d[:, None] * (1 - 1e-12), most, -torch.inf)
            most = torch.minimum(most, furthest)
        return most

    def _floor(self, done: Tensor) -> Tensor:
        """The beginning of the layer in which D has come to stand."""
        index = torch.searchsorted(self.d, (done * (1 + 1e-12)).contiguous(), right=True) - 1
        return torch.where(index >= 0, self.d[index.clamp(min=0)], -torch.inf)

    def _ceiling(self, done: Tensor) -> Tensor:
        """The end of the layer in which D has come to stand."""
        index = torch.searchsorted(self.d, (done * (1 - 1e-12)).contiguous())
        return self.d[index.clamp(max=self.count)]

    def _assignment(self, steps: list[tuple[Tensor, Tensor]]) -> Assignment:
        """Goes back from the last state to the first."""
        n = self.count + 1
        kind, a, c = 0, self.count, self.count
        ends = []
        for done, origin in reversed(steps):
            ends.append((a, c, float(done[kind, a, c])))
            step = int(origin[a, c])
            kind, a, c = step // (n * n), step // n % n, step % n
        ends.reverse()
        forward = [0] * self.count
        weight = [0] * self.count
        start = 0
        first_f = first_g = start
        for p, (a, c, _) in enumerate(ends):
            forward[first_f:a] = [p] * (a - first_f)
            weight[first_g:c] = [p] * (c - first_g)
            first_f, first_g = max(first_f, a), max(first_g, c)
        return Assignment(
            self.processors, tuple(forward), self._shares([d for *_, d in ends], forward),
            tuple(weight),
        )  # fmt: skip

    def _shares(
        self, ends: list[float], forward: list[int]
    ) -> tuple[tuple[tuple[int, float], ...], ...]:
        """(processor, fraction) of each layer's D from where each processor ends."""
        shares: list[tuple[tuple[int, float], ...]] = []
        for m, cost in enumerate(self.costs):
            low, high = float(self.d[m]), float(self.d[m + 1])
            if not cost.input_gradient:
                shares.append(((forward[m], 1.0),))
                continue
            found, before = [], 0.0
            for p, end in enumerate(ends):
                part = min(end, high) - max(before, low)
                if part > 1e-9 * cost.input_gradient:
                    found.append((p, part / cost.input_gradient))
                before = max(before, end)
            total = sum(part for _, part in found)
            shares.append(tuple((p, part / total) for p, part in found))
        return tuple(shares)


def _sums(values: list[float]) -> Tensor:
    return torch.tensor([0.0, *values], dtype=torch.float64, device="cpu").cumsum(0)
