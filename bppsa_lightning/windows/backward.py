"""Gradients of a walk in windows: each window's own, then what is handed on from window to window.

Gradients are linear in what enters: u, the direct gradients of ys and of the last state, and the
gradient that comes from the window after. So all windows first take their own u, side by side, with
nothing from the window after. What then reaches a window's start is handed to the window before,
at its end, and followed backwards, piece by piece, as long as it is above the rounding of the
gradients that are there already; what reaches the next start is handed on again. After at most as
many passes as there are windows all has arrived: the chain rule, in another order.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa_lightning.windows.cut import side_by_side
from bppsa_lightning.windows.forward import Group, Piece, Tape
from bppsa_lightning.windows.report import Report

Wanted = tuple[Sequence[bool], Sequence[bool], Sequence[bool]]
Gradients = list[Tensor | None]


def backward(
    tape: Tape, grad_ys: Gradients, grad_last: Gradients, wanted: Wanted, report: Report
) -> Gradients:
    """The gradients of xs, of the state and of the engine's tensors, None where not `wanted`.

    Args:
        grad_ys, grad_last: of the results; None for zeros.
    """
    return _Backward(tape, grad_ys, wanted, report).run(grad_last)


class _Backward:
    def __init__(self, tape: Tape, grad_ys: Gradients, wanted: Wanted, report: Report) -> None:
        self.tape, self.report = tape, report
        self.u = list(grad_ys)
        self.wants_xs, self.wants_state, self.wants_own = wanted
        engine = tape.engine
        self.own = [t for t, w in zip(engine.tensors, self.wants_own, strict=True) if w]
        self.of_own: Gradients = [None] * len(self.own)
        # Of each group: gradients of its xs, piece by piece.
        self.of_xs: list[list[Gradients]] = [
            [[None] * len(piece.xs) for piece in group.pieces] for group in tape.groups
        ]
        # Of each group: how large the gradients are that arrived at each piece's start.
        self.sizes: dict[int, list[list[Tensor | None]]] = {}

    def run(self, grad_last: Gradients) -> Gradients:
        tape, order = self.tape, self.tape.order
        # What enters at the ends of the segments of each group: (n * B, ...) each, or None.
        entering = [self._zeros_at_ends(group) for group in tape.groups]
        end, place = order[-1]
        self._put(entering, end, place, grad_last)
        leaving = [
            self._own(i, group, entering[i]) if any(group.current) else None
            for i, group in enumerate(tape.groups)
        ]
        at_start = self._row(leaving[order[0][0]], order[0][1])
        handed = self._hand_on(leaving)
        while any(h is not None for h in handed):
            self.report.backward_passes += 1
            leaving = [
                None if h is None else self._follow(i, tape.groups[i], h)
                for i, h in enumerate(handed)
            ]
            at_start = _plus(at_start, self._row(leaving[order[0][0]], order[0][1]))
            handed = self._hand_on(leaving)
        return [*self._gradients_of_xs(), *self._of_state(at_start), *self._spread_own()]

    def _own(self, index: int, group: Group, entering: Gradients) -> Gradients:
        """First pass: with u. Returns what reaches the starts."""
        n, B, sizes = len(group.starts), self.tape.B, []
        carry, at = entering, group.length
        for p, piece in reversed(list(enumerate(group.pieces))):
            at -= piece.length
            u = [
                None if g is None else self._part(g, group, at, piece.length).reshape(y.shape)
                for g, y in zip(self.u, piece.ys, strict=True)
            ]
            carry = self._through(index, p, piece, u, carry)
            sizes.append([None if c is None else _size(c, n * B) for c in carry])
        self.sizes[index] = sizes[::-1]
        return carry

    def _follow(self, index: int, group: Group, entering: Gradients) -> Gradients | None:
        """Later passes: what entered at the ends, without u, until it is below rounding."""
        carry: Gradients = entering
        alive = _above(carry, [None] * len(carry))
        for p, piece in reversed(list(enumerate(group.pieces))):
            carry = self._through(index, p, piece, [None] * len(piece.ys), carry)
            # (Where nothing entered, nothing leaves: zeros become NaN where a state is.)
            alive = alive & _above(carry, self.sizes[index][p])
            if not bool(alive.any()):
                return None
            if not bool(alive.all()):
                carry = [None if c is None else _select(alive, c) for c in carry]
        return carry

    def _through(
        self, index: int, p: int, piece: Piece, u: Gradients, carry: Gradients
    ) -> Gradients:
        """The gradients at a piece's start; those of its xs and of what is the engine's add up."""
        outputs, given = [], []
        for t, g in zip([*piece.ys, *piece.last], [*u, *carry], strict=True):
            if g is not None and t.requires_grad:
                outputs.append(t)
                given.append(g)
        if not outputs:
            return [None] * len(piece.first)
        xs = [x for x in piece.xs if x.requires_grad]
        first = [s for s in piece.first if s.requires_grad]
        found = list(
            torch.autograd.grad(
                outputs, [*first, *xs, *self.own], given, retain_graph=True, allow_unused=True
            )
        )
        at_first, of_xs = found[: len(first)], found[len(first) : len(first) + len(xs)]
        self.of_own = [
            _sum(a, b) for a, b in zip(self.of_own, found[len(first) + len(xs) :], strict=True)
        ]
        mine, each = self.of_xs[index][p], iter(of_xs)
        for i, x in enumerate(piece.xs):
            if x.requires_grad:
                mine[i] = _sum(mine[i], next(each))
        each = iter(at_first)
        return [next(each) if s.requires_grad else None for s in piece.first]

    def _hand_on(self, leaving: Sequence[Gradients | None]) -> list[Gradients | None]:
        """What enters at the ends of each group's segments, of what leaves at the starts of all."""
        order, groups = self.tape.order, self.tape.groups
        handed: list[Gradients | None] = [None] * len(groups)
        alive = [
            None if g is None else _alive(g, len(groups[i].starts)) for i, g in enumerate(leaving)
        ]
        for (g, place), (before, at) in zip(order[1:], order, strict=False):
            rows = alive[g]
            if rows is None or not rows[place]:
                continue
            if handed[before] is None:
                handed[before] = self._zeros_at_ends(groups[before])
            entering = handed[before]
            assert entering is not None
            self._put(handed, before, at, self._row(leaving[g], place))
        return handed

    def _zeros_at_ends(self, group: Group) -> Gradients:
        return [
            torch.zeros_like(s) if s.is_floating_point() or s.is_complex() else None
            for s in (t.detach() for t in group.pieces[-1].last)
        ]

    def _put(
        self, entering: Sequence[Gradients | None], group: int, place: int, given: Gradients
    ) -> None:
        B, all_of = self.tape.B, entering[group]
        assert all_of is not None
        for rows, g in zip(all_of, given, strict=True):
            if rows is not None and g is not None:
                rows[place * B : (place + 1) * B] = g

    def _row(self, leaving: Gradients | None, place: int) -> Gradients:
        if leaving is None:
            return [None] * len(self.tape.groups[0].pieces[0].first)
        B = self.tape.B
        return [None if g is None else g[place * B : (place + 1) * B] for g in leaving]

    def _part(self, u: Tensor, group: Group, at: int, length: int) -> Tensor:
        """The direct gradients of some steps of a group's segments; zeros where not current."""
        if all(group.current):
            return side_by_side(u, [start + at for start in group.starts], length)
        rows = []
        for start, current in zip(group.starts, group.current, strict=True):
            part = u[start + at : start + at + length]
            rows.append(part if current else torch.zeros_like(part))
        return rows[0] if len(rows) == 1 else torch.stack(rows, 1)

    def _gradients_of_xs(self) -> Gradients:
        found: Gradients = []
        for i, wanted in enumerate(self.wants_xs):
            reached = any(g[i] is not None for pieces in self.of_xs for g in pieces)
            if not wanted or not reached:
                found.append(None)
                continue
            whole = []
            for g, place in self.tape.order:
                B = self.tape.B
                for p, piece in enumerate(self.tape.groups[g].pieces):
                    grad = self.of_xs[g][p][i]
                    x = piece.xs[i]
                    grad = torch.zeros_like(x) if grad is None else grad
                    whole.append(grad[:, place * B : (place + 1) * B])
            found.append(torch.cat(whole))
        return found

    def _of_state(self, at_start: Gradients) -> Gradients:
        return [g if w else None for g, w in zip(at_start, self.wants_state, strict=True)]

    def _spread_own(self) -> Gradients:
        each = iter(self.of_own)
        return [next(each) if wanted else None for wanted in self.wants_own]


def _size(g: Tensor, rows: int) -> Tensor:
    """Per sample and unit, how large a gradient is there: of the sample's, and of the unit's."""
    flat = g.abs().reshape(rows, -1)
    if not flat.numel():
        return g.abs()
    return torch.minimum(flat.amax(1, keepdim=True), flat.amax(0, keepdim=True)).reshape(g.shape)


def _above(carry: Gradients, sizes: Sequence[Tensor | None]) -> Tensor:
    """(rows,) bool: the samples whose gradients, of such sizes, would change by a carry."""
    found: Tensor | None = None
    for c, size in zip(carry, sizes, strict=True):
        if c is None:
            continue
        # (Some kernels' gradients end at a denormal number, and stay there.)
        low = torch.full_like(c, torch.finfo(c.dtype).tiny)
        if size is not None:
            low = torch.maximum(low, torch.finfo(c.dtype).eps * size)
        rows = ~(c.abs() <= low).unsqueeze(-1).flatten(1).all(1)  # also where it is NaN
        found = rows if found is None else found | rows
    return torch.zeros(1, dtype=torch.bool) if found is None else found


def _alive(leaving: Gradients, n: int) -> list[bool]:
    """Of n segments: whether anything but zeros leaves."""
    found: Tensor | None = None
    for g in leaving:
        if g is not None:
            rows = (g != 0).reshape(n, -1).any(1)
            found = rows if found is None else found | rows
    return [False] * n if found is None else found.tolist()


def _select(rows: Tensor, c: Tensor) -> Tensor:
    return torch.where(rows.reshape(-1, *[1] * (c.dim() - 1)), c, torch.zeros_like(c))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _plus(a: Gradients, b: Gradients) -> Gradients:
    return [_sum(x, y) for x, y in zip(a, b, strict=True)]
