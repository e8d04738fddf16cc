"""How far a recurrence remembers: two walks under one input, until they are one.

Both walk in float64, where nothing hides how their distance falls; a third walks in float32, which
shows the rounding that windows are measured by. A look takes a few short pieces of the sequence,
side by side, and ends as soon as the two have met, or will not within the steps that would pay.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bppsa_lightning._context import for_graphs, own_graph
from bppsa_lightning.windows.cut import Leaves, side_by_side
from bppsa_lightning.windows.engine import Engine
from bppsa_lightning.windows.levels import Levels, rounding_of, rounding_of_gradients

# Pieces of the sequence, if there are few samples; rows at most, if there are many.
_PIECES, _ROWS = 8, 32

# Steps between two comparisons, at first; then a quarter of those walked.
_BLOCK = 16

# The distance of two walks that have met, of the rounding: then it is in nobody's way.
_SHARE = 0.25

# Warm-ups are longer than what the pieces needed, by this factor: others may need more.
_MARGIN = 1.25


class Seen(NamedTuple):
    """What a look found.

    Attributes:
        warm: steps after which walks have met; None if they do not in time.
        levels: the rounding of the state.
        steps: that were walked, one after the other.
    """

    warm: int | None
    levels: Levels
    steps: int


def look(engine: Engine, xs: Leaves, state: Leaves, most: int) -> Seen:
    """Walks pieces of at most `most` steps of xs, each (T, B, ...)."""
    T, B = xs[0].shape[:2]
    most = min(most, T)
    n = max(2, min(_PIECES, _ROWS // max(B, 1)))
    starts = [i * (T - most) // (n - 1) for i in range(n)]
    return _Look(engine, xs, state, starts, most).run()


class _Look:
    """The walks of one look: `a` and `b` from two states, in float64; `single` as `a`."""

    def __init__(
        self, engine: Engine, xs: Leaves, state: Leaves, starts: Sequence[int], most: int
    ) -> None:
        self.xs, self.starts, self.most = xs, starts, most
        self.n, self.dtypes = len(starts), [s.dtype for s in state]
        self.rows = self.n * xs[0].shape[1]
        self.engine = engine
        self.walks = {d: engine.in_dtype(d) for d in (torch.float32, torch.float64)}
        self.zeros = [s.new_zeros(self.rows, *s.shape[1:]) for s in state]
        self.steps = 0

    def run(self) -> Seen:
        single, first = _cast(self.zeros, torch.float32), _cast(self.zeros, torch.float64)
        length = min(_BLOCK, self.most)
        single, a = self._walk(single, 0, length), self._walk(first, 0, length)
        # The other begins where a neighbour is after a few steps, and aside of that: what is never
        # written would be the same in both, and not forgotten.
        other = [_aside(s.roll(self.rows // self.n, 0)) for s in a]
        b = self._walk(other, 0, length)
        rounding = self._rounding(single, a)
        walked, distances = length, [(length, self._excess(a, b, rounding))]
        while distances[-1][1] > 1 and walked < self.most:
            if not self._will_meet(distances):
                return Seen(None, Levels(rounding, _sizes(a)), self.steps)
            length = min(max(_BLOCK, walked // 4), self.most - walked)
            single = self._walk(single, walked, length)
            both = [torch.cat(pair) for pair in zip(a, b, strict=True)]
            both = self._walk(both, walked, length)
            a, b = [s[: self.rows] for s in both], [s[self.rows :] for s in both]
            walked += length
            seen = self._rounding(single, a)
            rounding = tuple(map(torch.maximum, rounding, seen))
            distances.append((walked, self._excess(a, b, rounding)))
        levels = Levels(rounding, _sizes(a))
        if distances[-1][1] > 1:
            return Seen(None, levels, self.steps)
        levels = levels._replace(gradients=self._gradients(min(2 * walked, self.most)))
        return Seen(int(walked * _MARGIN), levels, self.steps)

    def _walk(self, state: Sequence[Tensor], at: int, length: int) -> list[Tensor]:
        dtype = next((s.dtype for s in state if s.is_floating_point()), torch.float32)
        xs = self._pieces(at, length, dtype)
        if state[0].shape[0] != self.rows:
            xs = [torch.cat([x, x], 1) for x in xs]
        self.steps += length
        return self.walks[dtype](xs, state)[1]

    def _pieces(self, at: int, length: int, dtype: torch.dtype) -> list[Tensor]:
        """Steps of all pieces: of as many as are walked, as all would be a copy of the sequence."""
        starts = [start + at for start in self.starts]
        parts = [for_graphs(side_by_side(x, starts, length)) for x in self.xs]
        return _cast(parts, dtype)

    def _gradients(self, steps: int) -> float:
        """How far gradients are from the truth, by those of the state before some steps."""
        found = []
        for dtype in (torch.float32, torch.float64):
            engine = self.engine.converted(dtype)
            if engine is None:
                return 1.0
            with torch.enable_grad(), own_graph():
                state = [s.requires_grad_() for s in _cast(self.zeros, dtype)]
                ys, last = engine(self._pieces(0, steps, dtype), state)
                results = [*ys, *last]
                found.append(torch.autograd.grad(results, state, [_waves(r) for r in results]))
        return rounding_of_gradients(*found)

    def _rounding(self, single: Leaves, double: Leaves) -> tuple[Tensor, ...]:
        dtype = next((d for d in self.dtypes if d.is_floating_point), torch.float32)
        found = rounding_of(single, double, dtype)
        return tuple(f.to(d) for f, d in zip(found, self.dtypes, strict=True))

    def _excess(self, a: Leaves, b: Leaves, rounding: Leaves) -> float:
        """The distance of the two walks over what counts as met, of the worst unit."""
        worst = 0.0
        for x, y, level in zip(a, b, rounding, strict=True):
            if not x.is_floating_point():
                worst = max(worst, 0.0 if torch.equal(x, y) else float("inf"))
                continue
            # float64's own rounding is the least that can be told.
            share = _SHARE if level.dtype != torch.float64 else 4.0
            tiny = torch.finfo(level.dtype).tiny
            far = (x - y).abs() / (share * level.double() + tiny)
            worst = max(worst, float(far.nan_to_num(float("inf")).max()) if far.numel() else 0.0)
        return worst

    def _will_meet(self, distances: Sequence[tuple[int, float]]) -> bool:
        """Whether the distance falls fast enough, once there are enough steps to tell."""
        (at, last), (before, then) = distances[-1], distances[max(0, len(distances) - 3)]
        if len(distances) < 3:
            return True
        if not last < then:
            return False
        return at + math.log(last) / math.log(then / last) * (at - before) <= self.most


def _sizes(state: Leaves) -> tuple[float, ...]:
    return tuple(float(s.abs().max()) if s.numel() else 0.0 for s in state)


def _waves(t: Tensor) -> Tensor:
    """Numbers of both signs, always the same."""
    waves = torch.arange(t.numel(), dtype=torch.float64, device=t.device).mul_(2.4).cos_()
    return waves.reshape(t.shape).float().to(t.dtype)


def _aside(s: Tensor) -> Tensor:
    if not s.is_floating_point():
        return s + 1
    size = s.abs().amax(0).nan_to_num(0.0, 0.0, 0.0)
    return s + torch.where(size > 0, size / 2, torch.ones_like(size))


def _cast(tensors: Leaves, dtype: torch.dtype) -> list[Tensor]:
    return [t.to(dtype) if t.is_floating_point() else t for t in tensors]
