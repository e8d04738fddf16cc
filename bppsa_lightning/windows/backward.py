"""Gradients of a walk in windows: each window's own, then what is handed on from window to window.

Gradients are linear in what enters: u, the direct gradients of ys and of the last state, and the
gradient that comes from the window after. So all windows first take their own u, side by side, with
nothing from the window after. What then reaches a window's start is handed to the window before,
at its end, and followed backwards, piece by piece, as long as it is above the rounding of the
gradients that are there already; what reaches the next start is handed on again. After at most as
many passes as there are windows all has arrived: the chain rule, in another order.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa_lightning.windows.cut import side_by_side
from bppsa_lightning.windows.forward import Group, Piece, Tape
from bppsa_lightning.windows.order import Run, followers, joined
from bppsa_lightning.windows.report import Report

Wanted = tuple[Sequence[bool], Sequence[bool], Sequence[bool]]
Gradients = list[Tensor | None]

_FEW = 8  # terms of a sum that float32 adds up as well as the walk does


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
        self.terms, self.checked = 0, False
        # Of each group: gradients of its xs, piece by piece.
        self.of_xs: list[list[Gradients]] = [
            [[None] * len(self.wants_xs) for _ in group.pieces] for group in tape.groups
        ]
        self.following = followers(tape.order, [len(group.starts) for group in tape.groups])
        # Of each group: what first arrived at each piece's start; and how large that is, if asked.
        self.arrived: dict[int, list[Gradients]] = {}
        self.sizes: dict[tuple[int, int], Gradients] = {}

    def run(self, grad_last: Gradients) -> Gradients:
        leaving = self._all_own(grad_last)
        at_start = self._at_start(leaving)
        # (Whether it is zero nobody looks: the host would wait for the device.)
        alive = {
            i: [any(g is not None for g in given)] * len(self.tape.groups[i].starts)
            for i, given in leaving.items()
        }
        handed = self._hand_on(leaving, alive)
        while handed:
            self.report.backward_passes += 1
            leaving, alive = self._follow(handed)
            at_start = _sums(at_start, self._at_start(leaving))
            handed = self._hand_on(leaving, alive)
        return [*self._gradients_of_xs(), *self._of_state(at_start), *self._spread_own()]

    def _all_own(self, grad_last: Gradients) -> dict[int, Gradients]:
        """First pass, over all groups: what reaches their starts, (n * B, ...) each, or None."""
        end, place = self.tape.order[-1]
        leaving = {}
        for i, group in enumerate(self.tape.groups):
            if not any(group.current):
                continue
            entering = [_zeros(s, len(s)) for s in group.pieces[-1].last]
            if i == end:
                rows = Run(end, place, 1).rows(self.tape.B)
                for e, g in zip(entering, grad_last, strict=True):
                    if e is not None and g is not None:
                        e[rows] = g
            leaving[i] = self._own(i, group, entering)
        return leaving

    def _own(self, index: int, group: Group, entering: Gradients) -> Gradients:
        """The first pass, with u. Returns what reaches the starts."""
        carry, at, arrived = entering, group.length, []
        for p, piece in reversed(list(enumerate(group.pieces))):
            at -= piece.length
            u = [None if g is None else self._part(g, group, at, piece.length) for g in self.u]
            carry = self._through(index, p, piece, u, carry)
            arrived.append(carry)
        self.arrived[index] = arrived[::-1]
        return carry

    def _follow(
        self, entering: dict[int, Gradients]
    ) -> tuple[dict[int, Gradients], dict[int, list[bool]]]:
        """Later passes: what entered at the ends, without u, until it is below rounding.

        Returns:
            What reaches the starts, of groups where anything does; of each segment, whether.
        """
        leaving, segments = {}, {}
        alive = {i: _above(carry, [None] * len(carry)) for i, carry in entering.items()}
        carries, at = entering, 0
        while carries:
            at -= 1
            for i, carry in carries.items():
                piece = self.tape.groups[i].pieces[at]
                carry = self._through(i, at, piece, [None] * len(self.u), carry)
                # (Where nothing entered, nothing leaves: zeros become NaN where a state is.)
                alive[i] = alive[i] & _above(carry, self._sizes(i, at))
                carries[i] = [None if c is None else _select(alive[i], c) for c in carry]
            found = self._segments({i: alive[i] for i in carries})
            carries = {i: carries[i] for i, rows in found.items() if any(rows)}
            for i in [i for i in carries if -at == len(self.tape.groups[i].pieces)]:
                leaving[i], segments[i] = carries.pop(i), found[i]
        return leaving, segments

    def _segments(self, alive: dict[int, Tensor]) -> dict[int, list[bool]]:
        """Of each group's segments, whether one of its samples is alive.

        The host waits for the device here, and nowhere else.
        """
        counts = [len(self.tape.groups[i].starts) for i in alive]
        rows = [a.unflatten(0, (n, -1)).any(1) for a, n in zip(alive.values(), counts, strict=True)]
        each = iter(torch.cat(rows).tolist())
        return {i: [next(each) for _ in range(n)] for i, n in zip(alive, counts, strict=True)}

    def _sizes(self, index: int, at: int) -> Gradients:
        """How large the gradients are that arrived at a piece's start."""
        arrived = self.arrived[index][at]
        if (index, at) not in self.sizes:
            self.sizes[index, at] = [None if c is None else _size(c) for c in arrived]
        return self.sizes[index, at]

    def _through(
        self, index: int, p: int, piece: Piece, u: Gradients, carry: Gradients
    ) -> Gradients:
        """The gradients at a piece's start; those of its xs and of what is the engine's add up."""
        kept = piece.again is None
        if piece.again is not None:
            piece = piece.again()
        outputs, given = [], []
        for t, g in zip([*piece.ys, *piece.last], [*u, *carry], strict=True):
            if g is not None and t.requires_grad:
                outputs.append(t)
                given.append(g)
        if not outputs:
            return [None] * len(piece.first)
        leaves = [t for t in (*piece.first, *piece.xs) if t.requires_grad]
        found = iter(
            torch.autograd.grad(
                outputs, [*leaves, *self.own], given, retain_graph=kept, allow_unused=True
            )
        )
        at_first = [next(found) if s.requires_grad else None for s in piece.first]
        of_xs = [next(found) if x.requires_grad else None for x in piece.xs]
        self.of_xs[index][p] = _sums(self.of_xs[index][p], of_xs)
        self.terms += 1
        add = _sums if self.terms <= _FEW else _sums_in_double
        own: Gradients = list(found)
        self.of_own = add(self.of_own, own)
        if not kept and not self.checked:
            self.checked = True
            unused = [t for t, g in zip(self.own, own, strict=True) if g is None]
            self.tape.engine.check_walk([*piece.ys, *piece.last], unused)
        return at_first

    def _hand_on(
        self, leaving: dict[int, Gradients], alive: dict[int, list[bool]]
    ) -> dict[int, Gradients]:
        """What enters at the ends of each group's segments, of what leaves at the starts of all."""
        return {
            i: self._entering(i, leaving)
            for i, following in enumerate(self.following)
            if any(any(alive.get(r.group, [])[r.place : r.place + r.segments]) for r in following)
        }

    def _entering(self, index: int, leaving: dict[int, Gradients]) -> Gradients:
        B, found = self.tape.B, []
        for k, last in enumerate(self.tape.groups[index].pieces[-1].last):
            rows = []
            for run in self.following[index]:
                g = leaving[run.group][k] if run.group in leaving else None
                rows.append(_zeros(last, run.segments * B) if g is None else g[run.rows(B)])
            given = [g for g in rows if g is not None]
            found.append(torch.cat(given).to(last.dtype) if given else None)
        return found

    def _at_start(self, leaving: dict[int, Gradients]) -> Gradients:
        """What leaves the first segment."""
        group, place = self.tape.order[0]
        if group not in leaving:
            return [None] * len(self.wants_state)
        rows = Run(group, place, 1).rows(self.tape.B)
        return [None if g is None else g[rows] for g in leaving[group]]

    def _part(self, u: Tensor, group: Group, at: int, length: int) -> Tensor:
        """The direct gradients of some steps of a group's segments; zeros where not current."""
        if all(group.current):
            return side_by_side(u, [start + at for start in group.starts], length)
        rows = []
        for start, current in zip(group.starts, group.current, strict=True):
            part = u[start + at : start + at + length]
            rows.append(part if current else torch.zeros_like(part))
        return rows[0] if len(rows) == 1 else torch.stack(rows, 1).flatten(1, 2)

    def _gradients_of_xs(self) -> Gradients:
        found: Gradients = []
        for i, wanted in enumerate(self.wants_xs):
            reached = [
                g for pieces in self.of_xs for grads in pieces if (g := grads[i]) is not None
            ]
            if not wanted or not reached:
                found.append(None)
                continue
            none = reached[0].new_zeros(())
            groups = []
            for group, pieces in zip(self.tape.groups, self.of_xs, strict=True):
                rows = len(group.starts) * self.tape.B, *reached[0].shape[2:]
                groups.append(
                    [
                        none.expand(piece.length, *rows) if (g := grads[i]) is None else g
                        for piece, grads in zip(group.pieces, pieces, strict=True)
                    ]
                )
            found.append(joined(self.tape.order, groups, self.tape.B))
        return found

    def _of_state(self, at_start: Gradients) -> Gradients:
        return [g if w else None for g, w in zip(at_start, self.wants_state, strict=True)]

    def _spread_own(self) -> Gradients:
        each = (
            None if g is None else g.to(t.dtype) for g, t in zip(self.of_own, self.own, strict=True)
        )
        return [next(each) if wanted else None for wanted in self.wants_own]


def _zeros(state: Tensor, rows: int) -> Tensor | None:
    """No gradient of some rows of a state; None where it has none at all."""
    if not state.is_floating_point() and not state.is_complex():
        return None
    return state.new_zeros(rows, *state.shape[1:])


def _size(g: Tensor) -> Tensor:
    """Per sample and unit, how large a gradient is there: of the sample's, and of the unit's."""
    flat = _flat(g.abs())
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
        of = torch.finfo(c.dtype)
        low = of.tiny if size is None else (of.eps * size).clamp_(min=of.tiny)
        rows = ~_flat(c.abs() <= low).all(1)  # also where it is NaN
        found = rows if found is None else found | rows
    return torch.zeros((), dtype=torch.bool, device="cpu") if found is None else found


def _flat(t: Tensor) -> Tensor:
    """(n, ...), or (n,), as (n, numbers of each)."""
    return t.reshape(len(t), math.prod(t.shape[1:]))


def _select(rows: Tensor, c: Tensor) -> Tensor:
    return torch.where(rows.reshape(-1, *[1] * (c.dim() - 1)), c, torch.zeros_like(c))


def _sums(a: Gradients, b: Gradients) -> Gradients:
    """Gradients of the same tensors, added; None is zero."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    added = iter(torch._foreach_add(*zip(*pairs, strict=True)) if pairs else ())
    return [y if x is None else x if y is None else next(added) for x, y in zip(a, b, strict=True)]


def _sums_in_double(a: Gradients, b: Gradients) -> Gradients:
    """The same in float64, for many terms: each group's piece in each pass is one."""
    return [
        y
        if x is None
        else x
        if y is None
        else x.to(torch.promote_types(x.dtype, torch.float64)) + y
        for x, y in zip(a, b, strict=True)
    ]
