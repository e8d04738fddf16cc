"""Times ways of doing one thing in turns: some steps of one, then some of the other.

A turn is some steps in a row, as training repeats them, without the first, which finds the other's
data in the caches. Turns of the ways are of about the same duration. Medians over turns; speed-ups
are medians of the ratios, pair by pair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import torch

from bppsa_lightning.gains.clock import clock_of

LEAST_TURNS, MOST_TURNS, MOST_STEPS = 3, 40, 50
SHORTEST_STEP = 1e-6


class Seconds(NamedTuple):
    """Of one step."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        """The sum."""
        return self.forward + self.backward

    def data(self) -> dict[str, float]:
        """For JSON."""
        return {"forward": self.forward, "backward": self.backward, "both": self.both}


Step = Callable[[], Seconds]


class Compared(NamedTuple):
    """Two ways of one thing.

    Attributes:
        stock, ours: seconds, medians over turns.
        speed_up: {"forward", "backward", "both"}: stock's seconds over ours, medians over pairs of
            turns; None where a part takes no time.
        turns: how many of each.
    """

    stock: Seconds
    ours: Seconds
    speed_up: dict[str, float | None]
    turns: int

    def data(self) -> dict[str, object]:
        """For JSON."""
        return {
            "stock": self.stock.data(),
            "bppsa": self.ours.data(),
            "speed_up": self.speed_up,
            "turns": self.turns,
        }


def timed(
    device: torch.device, forward: Callable[[], object], backward: Callable[[], object]
) -> Seconds:
    """Seconds of both, one after the other, from an idle device."""
    clock = clock_of(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    marks = [clock.now()]
    for part in (forward, backward):
        part()
        marks.append(clock.now())
    return Seconds(clock.between(marks[0], marks[1]), clock.between(marks[1], marks[2]))


def compared(stock: Step, ours: Step, seconds: float) -> Compared:
    """Lets them take turns for so long, and for `LEAST_TURNS` at least."""
    ways: Mapping[str, Step] = {"stock": stock, "ours": ours}
    start = time.perf_counter()
    longest = {name: max(step().both, SHORTEST_STEP) for name, step in ways.items()}  # warms up
    each = seconds / (4 * LEAST_TURNS)
    counts = {name: max(1, min(MOST_STEPS, int(each / s))) for name, s in longest.items()}
    skipped = 0 if max(longest.values()) > each else 1  # of long steps the caches matter little
    turns: dict[str, list[Seconds]] = {name: [] for name in ways}
    while len(turns["ours"]) < MOST_TURNS and (
        len(turns["ours"]) < LEAST_TURNS or time.perf_counter() - start < seconds
    ):
        for name, step in ways.items():
            turns[name].append(_medians([step() for _ in range(counts[name] + skipped)][skipped:]))
    pairs = list(zip(turns["stock"], turns["ours"], strict=True))
    return Compared(
        _medians(turns["stock"]),
        _medians(turns["ours"]),
        {part: _ratio([(getattr(a, part), getattr(b, part)) for a, b in pairs]) for part in PARTS},
        len(pairs),
    )


PARTS = ("forward", "backward", "both")


def _medians(measured: Sequence[Seconds]) -> Seconds:
    return Seconds(median(s.forward for s in measured), median(s.backward for s in measured))


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    ratios = [a / b for a, b in pairs if a > 0 and b > 0]
    return median(ratios) if ratios else None
