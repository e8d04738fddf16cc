"""Measures ways of doing one thing in pairs: some steps of one, then some of the other, in turns.

A turn is some steps in a row, as training repeats them, without the first, which finds the others'
data in the caches. Turns of the ways are of about the same duration, so that each finds its own
steady state. Medians over turns; ratios are medians over the pairs.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

Seconds = dict[str, float]  # of each part
Step = Callable[[], Seconds]  # one step; seconds of its parts


def measure(
    ways: dict[str, Step], seconds: float, most: int, least: int = 1, shortest: int = 2
) -> dict[str, Any]:
    """Median seconds of each part of each way, and ratios to the first way.

    Args:
        ways: by name; the parts of the first are parts of all, or are left out of their ratios.
        seconds, most, least, shortest: as of `take_turns`.

    Returns:
        {"pairs": turns, way: {part: seconds}, …, "ratio_<way>": {part: way's / first's}, …}.
    """
    turns = take_turns(ways, seconds, most, least, shortest)
    ours, *others = ways
    found: dict[str, Any] = {"pairs": len(turns[ours])}
    found |= {name: medians(turns[name]) for name in ways}
    return found | {f"ratio_{name}": ratios(turns[name], turns[ours]) for name in others}


def take_turns(
    ways: dict[str, Step], seconds: float, most: int, least: int = 1, shortest: int = 2,
    unmeasured: int = 1,
) -> dict[str, list[Seconds]]:  # fmt: skip
    """The turns of each way: {way: [medians of a turn's steps, …]}.

    Args:
        ways: by name.
        seconds: for all turns together.
        most, least: turns of each way, whatever the time.
        shortest: steps of a turn that are counted, at least.
        unmeasured: steps at the beginning of a turn that are not counted.
    """
    start = time.perf_counter()
    first = {name: max(step().values()) for name, step in ways.items()}  # compiles, fills caches
    counts = {name: max(shortest, min(50, int(seconds / 60 / s))) for name, s in first.items()}
    turns: dict[str, list[Seconds]] = {name: [] for name in ways}
    done = 0
    while done < most and (done < least or time.perf_counter() - start <= seconds):
        for name, step in ways.items():
            turns[name].append(turn(step, counts[name], unmeasured))
        done += 1
    return turns


def turn(step: Step, count: int, unmeasured: int = 1) -> Seconds:
    """Medians of `count` consecutive steps after some that are not counted."""
    return medians([step() for _ in range(count + unmeasured)][unmeasured:])


def medians(measured: Sequence[Seconds]) -> Seconds:
    """The median of each part."""
    return {part: median(m[part] for m in measured) for part in measured[0]}


def ratios(turns: Sequence[Seconds], others: Sequence[Seconds]) -> Seconds:
    """Medians of the ratios of two ways' turns, pair by pair, of the parts that both have."""
    pairs = list(zip(turns, others, strict=True))
    return {part: median(a[part] / b[part] for a, b in pairs) for part in turns[0]}


def repeated(call: Callable[[], object], seconds: float, least: int = 5) -> float:
    """Median seconds of a call on the CPU, repeated; the first fifth of the calls warms up."""
    times: list[float] = []
    while sum(times) < seconds or len(times) < least:
        times += timed(torch.device("cpu"), call=call).values()
    return median(times[len(times) // 5 :])


def timed(device: torch.device, **parts: Callable[[], object]) -> Seconds:
    """Seconds of some calls, one after the other, from an idle device.

    On a GPU they are timed with CUDA events, so that what the host does meanwhile is counted where
    the device waits for it.

    Args:
        parts: by name, in the order in which they are called.
    """
    calls = list(parts.values())
    times = (_on_gpu if device.type == "cuda" else _on_host)(calls)
    return dict(zip(parts, times, strict=True))


def _on_host(calls: Sequence[Callable[[], object]]) -> list[float]:
    marks = [time.perf_counter()]
    for call in calls:
        call()
        marks.append(time.perf_counter())
    return [b - a for a, b in zip(marks, marks[1:], strict=False)]


def _on_gpu(calls: Sequence[Callable[[], object]]) -> list[float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for call, mark in zip(calls, marks[1:], strict=True):
        call()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:], strict=False)]
