"""Segments in the order of time: neighbours in time that lie side by side are taken as one.

Segments of one length are walked side by side, as a group, in which each has its place. So few
operations put all of them in order, however many windows there are. T steps, B samples.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from torch import Tensor

from bppsa_lightning.windows.cut import in_time

Place = tuple[int, int]  # a group, and the place in it


class Run(NamedTuple):
    """`segments` of them from a place of a group on; of no group (-1) where there is none."""

    group: int
    place: int
    segments: int

    def rows(self, B: int) -> slice:
        """Of the group's samples those of these segments."""
        return slice(self.place * B, (self.place + self.segments) * B)


def runs(order: Iterable[Place | None]) -> Iterator[Run]:
    """All segments of an order; None stands for no segment."""
    for (group, _), same in groupby(enumerate(order), _line):
        places = [found for _, found in same]
        yield Run(group, places[0][1] if places[0] else 0, len(places))


def _line(at: tuple[int, Place | None]) -> Place:
    """The same for neighbours in time that are neighbours in a group."""
    when, found = at
    return (found[0], found[1] - when) if found else (-1, 0)


def followers(order: Sequence[Place], sizes: Sequence[int]) -> list[list[Run]]:
    """Of each group, of so many segments, which segments come after its own, place by place."""
    after = dict(zip(order, order[1:], strict=False))
    return [list(runs(after.get((g, k)) for k in range(n))) for g, n in enumerate(sizes)]


def joined(order: Sequence[Place], groups: Sequence[Sequence[Tensor]], B: int) -> Tensor:
    """What lies in segments, as one sequence (T, B, ...).

    Args:
        groups: of each group what lies in its segments, piece by piece, (steps, n * B, ...) each.
    """
    lengths = [sum(piece.shape[0] for piece in pieces) for pieces in groups]
    some = groups[0][0]
    whole = some.new_empty(sum(lengths[g] for g, _ in order), B, *some.shape[2:])
    end = 0
    for run in runs(order):
        begin, end = end, end + run.segments * lengths[run.group]
        into, at = whole[begin:end].unflatten(0, (run.segments, lengths[run.group])), 0
        for piece in groups[run.group]:
            steps = piece.shape[0]
            into[:, at : at + steps] = in_time(piece[:, run.rows(B)], run.segments)
            at += steps
    return whole
