"""Walks all windows side by side, compares, and walks those again that began elsewhere.

T steps, B samples, K windows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from bppsa_lightning._context import autocast_as_now
from bppsa_lightning.windows.cut import Cut, Leaves, in_time, side_by_side
from bppsa_lightning.windows.engine import Engine
from bppsa_lightning.windows.levels import Levels
from bppsa_lightning.windows.order import Place, joined
from bppsa_lightning.windows.report import Report


@dataclass
class Piece:
    """Some steps of some windows, from leaf to results: what their gradients need.

    Attributes:
        length: steps.
        again: walks a piece that was checkpointed, and keeps neither xs nor ys, once more.
    """

    length: int
    xs: list[Tensor]
    first: list[Tensor]
    ys: list[Tensor]
    last: list[Tensor]
    again: Callable[[], "Piece"] | None = None


@dataclass
class Group:
    """Segments of one length that were walked side by side.

    Attributes:
        starts: first step of each. length: steps. pieces: in the order of time.
        current: of each segment: whether its results are in use (and were not walked again).
    """

    starts: list[int]
    length: int
    pieces: list[Piece]
    current: list[bool] = field(default_factory=list)

    @property
    def last(self) -> list[Tensor]:
        """The state after the last step, (n, B, ...) each."""
        n = len(self.starts)
        return [s.detach().unflatten(0, (n, -1)) for s in self.pieces[-1].last]


@dataclass
class Tape:
    """A walk in windows, for its backward.

    Attributes:
        engine: with the leaves that gradients are taken to.
        groups: what was walked.
        order: of each segment in the order of time: its group, and its place there.
        ys, last: the results, detached.
        shapes: of xs, in all.
    """

    engine: Engine
    groups: list[Group]
    order: list[Place]
    ys: list[Tensor]
    last: list[Tensor]
    B: int


class _Walker:
    """Walks segments of one sequence, and keeps what their gradients need if it is told to."""

    def __init__(
        self, engine: Engine, xs: Leaves, warm: int, keep: bool, wants_xs: Sequence[bool],
        checkpoint: int,
    ) -> None:  # fmt: skip
        self.engine, self.xs, self.warm = engine, xs, warm
        self.keep, self.wants_xs, self.checkpoint = keep, wants_xs, checkpoint
        self.casts = autocast_as_now(xs[0].device.type)

    def __call__(self, starts: Sequence[int], length: int, state: Leaves) -> Group:
        """Segments from their states, (n * B, ...) each."""
        checkpointed = self.keep and self.checkpoint > 0
        parts = [] if checkpointed else self._parts(starts, length)
        pieces, at = [], 0
        for steps in self._pieces(length):
            if checkpointed:
                piece = self._checkpoint([start + at for start in starts], steps, list(state))
            else:
                piece = self._walk([x[at : at + steps] for x in parts], list(state))
            pieces.append(piece)
            state, at = piece.last, at + steps
        return Group(list(starts), length, pieces, [True] * len(starts))

    def _pieces(self, length: int) -> list[int]:
        """The steps of each piece of a segment, in the order of time."""
        if not self.keep:
            return [length]
        pieces = _followed(length, self.warm, self.engine)
        if not self.checkpoint:
            return pieces
        parts = [(steps, -(-steps // self.checkpoint)) for steps in pieces]
        return [steps // n + (i < steps % n) for steps, n in parts for i in range(n)]

    def _parts(self, starts: Sequence[int], length: int) -> list[Tensor]:
        return [side_by_side(x, starts, length) for x in self.xs]

    def _walk(self, xs: list[Tensor], state: list[Tensor]) -> Piece:
        if self.keep:
            state = [_leaf(s, True) for s in state]
            xs = [_leaf(x, wants) for x, wants in zip(xs, self.wants_xs, strict=True)]
        copied = self.engine.changes_state  # no leaf may be, and what was begun with is compared
        ys, last = self.engine(xs, [s.clone() for s in state] if copied else state)
        return Piece(len(xs[0]), xs, state, ys, last)

    def _checkpoint(self, starts: list[int], steps: int, state: list[Tensor]) -> Piece:
        """Keeps the first states."""
        with torch.no_grad():
            ys, last = self.engine(self._parts(starts, steps), [s.clone() for s in state])
            forget_casts()
        # (A view of more than a state would keep that, too.)
        last, again = [s.clone() for s in last], partial(self._again, starts, steps, state)
        return Piece(steps, [], state, ys, last, again)

    def _again(self, starts: list[int], steps: int, state: list[Tensor]) -> Piece:
        with torch.enable_grad(), self.casts():
            return self._walk(self._parts(starts, steps), state)


def forward(
    engine: Engine,
    xs: Leaves,
    state: Leaves,
    cut: Cut,
    levels: Levels,
    report: Report,
    keep: bool,
    wants_xs: Sequence[bool] = (),
    checkpoint: int = 0,
) -> Tape:
    """The walk of xs, (T, B, ...) each, from state, (B, ...) each.

    Args:
        keep: whether a backward will follow.
        wants_xs: of each of xs, whether its gradient is wanted.
        checkpoint: steps, of which a backward keeps only the state before them, and walks them
            again; 0 if it keeps all.
    """
    walk = _Walker(engine, xs, cut.warm, keep, wants_xs, checkpoint)
    B, K, starts = xs[0].shape[1], cut.windows, list(cut.starts)
    report.windows, report.warm = K, cut.warm
    groups: list[Group] = []
    init = state
    if cut.head:
        groups.append(walk([0], cut.head, state))
        state = groups[0].pieces[-1].last
    first = _first_states(engine, xs, state, cut)
    groups.append(walk(starts, cut.span, [s.flatten(0, 1) for s in first]))
    owner = [(len(groups) - 1, k) for k in range(K)]  # of each window: its group, its place there
    last = groups[-1].last
    missed = _missed(levels, [s[1:] for s in first], [s[:-1] for s in last], range(1, K))
    report.missed = len(missed)
    if missed:  # they change below
        first, last = [s.clone() for s in first], [s.clone() for s in last]
    whole = K  # windows from here on are walked as one
    while missed:
        if not _sound(groups, owner, missed):
            report.walked_from = 0
            groups, order = [walk([0], cut.T, init)], [(0, 0)]
            return _tape(engine, groups, order, B)
        if _is_hopeless(missed, K):
            whole = missed[0]
            break
        report.passes += 1
        begun = _some(last, [k - 1 for k in missed])
        group = walk([starts[k] for k in missed], cut.span, [s.flatten(0, 1) for s in begun])
        groups.append(group)
        for place, k in enumerate(missed):
            _replace(groups, owner[k])
            owner[k] = len(groups) - 1, place
            for s, new in zip(first, begun, strict=True):
                s[k] = new[place]
            for s, new in zip(last, group.last, strict=True):
                s[k] = new[place]
        behind = sorted({k + 1 for k in missed} - {K})
        if not behind:
            break
        begun, true = _some(first, behind), _some(last, [k - 1 for k in behind])
        missed = _missed(levels, begun, true, behind)
    if whole < K:
        report.walked_from = whole
        start = [s[whole - 1].contiguous() for s in last]
        groups.append(walk([starts[whole]], cut.T - starts[whole], start))
        for k in range(whole, K):
            _replace(groups, owner[k])
        owner = [*owner[:whole], (len(groups) - 1, 0)]
    return _tape(engine, groups, ([(0, 0)] if cut.head else []) + owner, B)


def in_one(
    engine: Engine, xs: Leaves, state: Leaves, wants_xs: Sequence[bool], checkpoint: int
) -> Tape:
    """As `forward`, without windows."""
    walk = _Walker(engine, xs, len(xs[0]), True, wants_xs, checkpoint)
    return _tape(engine, [walk([0], len(xs[0]), state)], [(0, 0)], xs[0].shape[1])


def _tape(engine: Engine, groups: list[Group], order: list[Place], B: int) -> Tape:
    end, place = groups[order[-1][0]], order[-1][1]
    last = [s[place].contiguous() for s in end.last]
    each = range(len(groups[0].pieces[0].ys))
    ys = [
        joined(order, [[piece.ys[i].detach() for piece in g.pieces] for g in groups], B)
        for i in each
    ]
    for piece in (piece for group in groups for piece in group.pieces if piece.again):
        piece.ys = []
    return Tape(engine, groups, order, ys, last, B)


def _first_states(engine: Engine, xs: Leaves, state: Leaves, cut: Cut) -> list[Tensor]:
    """Of each window, (K, B, ...): the true one of the first, and guesses of all others."""
    starts, n = [s - cut.warm for s in cut.starts[1:]], cut.windows - 1
    with torch.no_grad():
        zeros = [s.new_zeros(n * s.shape[0], *s.shape[1:]) for s in state]
        parts = [side_by_side(x.detach(), starts, cut.warm) for x in xs]
        _, guessed = engine(parts, zeros)
        forget_casts()
        return [
            torch.cat([s.detach().unsqueeze(0), g.unflatten(0, (n, -1))])
            for s, g in zip(state, guessed, strict=True)
        ]


def forget_casts() -> None:
    """Autocast keeps what it cast, also without gradients: nobody must find that with them."""
    if torch._C._is_any_autocast_enabled():
        torch.clear_autocast_cache()


def _some(states: Leaves, windows: Sequence[int]) -> list[Tensor]:
    """Of states (K, B, ...) those of some windows, without an index that the host would send."""
    return [torch.stack([s[k] for k in windows]) for s in states]


def _missed(levels: Levels, begun: Leaves, true: Leaves, windows: Sequence[int]) -> list[int]:
    """Those of some windows that did not begin where the one before ended."""
    met = levels.met(begun, true)
    return [k for k, good in zip(windows, met, strict=True) if not good]


def _is_hopeless(missed: Sequence[int], K: int) -> bool:
    """Whether walking the rest as one is likely to take no longer than passes over windows.

    Neighbours that missed are repaired one after the other, if the recurrence does not forget.
    """
    longest = run = 0
    for before, k in zip((-1, *missed), missed, strict=False):
        run = run + 1 if k == before + 1 else 1
        longest = max(longest, run)
    return longest > 2 and 2 * longest >= K - missed[0]


def _sound(groups: list[Group], owner: list[Place], missed: Sequence[int]) -> bool:
    """Whether what is replaced is finite: else its zero gradients would become NaN."""
    finite = []
    for k in missed:
        group, place = owner[k]
        n = len(groups[group].starts)
        finite += [s[place].isfinite().all() for s in groups[group].last]
        for piece in groups[group].pieces:
            finite += [in_time(y.detach(), n)[place].isfinite().all() for y in piece.ys]
    return bool(torch.stack(finite).all())


def _replace(groups: list[Group], owner: Place) -> None:
    group, place = owner
    groups[group].current[place] = False


def _leaf(t: Tensor, wanted: bool) -> Tensor:
    t = t.detach()
    return t.requires_grad_() if wanted and (t.is_floating_point() or t.is_complex()) else t


def _followed(length: int, warm: int, engine: Engine) -> list[int]:
    """The steps of pieces by which gradients that enter at the end are followed until they end."""
    if length <= 2 * warm:
        return [length]
    if engine.call > 2 * warm * engine.cost(1):
        return [length - 2 * warm, 2 * warm]
    if engine.call:
        return [length - 2 * warm, warm, warm]
    steps, left, size = [warm], length - warm, warm
    while left > size:
        steps.append(size)
        left, size = left - size, 2 * size
    return [*([left] if left else []), *reversed(steps)]
