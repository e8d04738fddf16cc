"""Measures ways of doing one thing in pairs: some steps of one, then some of the other, in turns.

A turn is some steps in a row, as training repeats them, without the first, which finds the others'
data in the caches. Turns of the ways are of about the same duration, so that each finds its own
steady state. Medians over turns; ratios are medians over the pairs.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

Step = Callable[[], dict[str, float]]  # one step; seconds of its parts


def measure(
    ways: dict[str, Step], seconds: float, most: int, least: int = 1, shortest: int = 2
) -> dict[str, Any]:
    """Median seconds of each part of each way, and ratios to the first way.

    Args:
        ways: by name; the parts of the first are parts of all, or are left out of their ratios.
        seconds: for all turns together.
        most, least: turns of each way, whatever the time.
        shortest: steps of a turn that are counted, at least.

    Returns:
        {"pairs": turns, way: {part: seconds}, …, "ratio_<way>": {part: way's / first's}, …}.
    """
    start = time.perf_counter()
    first = {name: max(step().values()) for name, step in ways.items()}  # compiles, fills caches
    counts = {name: max(shortest, min(50, int(seconds / 60 / s))) for name, s in first.items()}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    done = 0
    while done < most and (done < least or time.perf_counter() - start <= seconds):
        for name, step in ways.items():
            turns[name].append(turn(step, counts[name]))
        done += 1
    ours, *others = ways
    found: dict[str, Any] = {"pairs": done}
    for name in ways:
        found[name] = {part: median(t[part] for t in turns[name]) for part in turns[name][0]}
    for name in others:
        pairs = list(zip(turns[ours], turns[name], strict=True))
        found[f"ratio_{name}"] = {p: median(b[p] / a[p] for a, b in pairs) for p in found[name]}
    return found


def turn(step: Step, count: int) -> dict[str, float]:
    """Medians of `count` consecutive steps after one that is not counted."""
    measured = [step() for _ in range(count + 1)][1:]
    return {part: median(m[part] for m in measured) for part in measured[0]}


def now(x: torch.Tensor) -> float:
    """The time when all work on x's device is done."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()
