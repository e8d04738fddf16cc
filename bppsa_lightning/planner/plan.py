"""A plan: which scan algorithm computes one chain's backward; and what may be asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import torch

ALGORITHMS = ("auto", "linear", "chunked", "blelloch")

# Of a chain over time, forward and backward: windows, each walked linearly.
SPECULATIVE = "speculative"


class Saved(IntEnum):
    """How much a recurrent forward saves for its backward."""

    NOTHING = 0
    STATES = 1  # what the gates can be computed from again: an LSTM's cells, else only the output
    GATES = 2


@dataclass(frozen=True)
class Plan:
    """How one chain's backward is computed.

    Attributes:
        algorithm: "linear", "chunked", "blelloch" or "speculative".
        chunk: steps in a chunk ("chunked"; 0 otherwise).
        levels: up-sweep levels ("blelloch"; 0 otherwise).
        seconds: estimated duration: of the scan; of a recurrent layer, of the whole backward.
        reason: one line for people.
        saved: what a recurrent layer's forward saves for it.
        windows: of time, walked side by side ("speculative"; 0 otherwise).
    """

    algorithm: str
    chunk: int = 0
    levels: int = 0
    seconds: float = 0.0
    reason: str = ""
    saved: Saved = Saved.GATES
    windows: int = 0


def workers(device: torch.device) -> int:
    """What works side by side on a device: multiprocessors, or torch's threads."""
    if device.type == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return torch.get_num_threads()


def max_levels(T: int) -> int:
    """Levels of the full tree over T steps: ceil(log2(T))."""
    return (T - 1).bit_length() if T > 1 else 0


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def chunked_plans(T: int, sizes: Sequence[int]) -> list[Plan]:
    """Plans of at least four chunks: with two, nothing would be composed."""
    return [Plan("chunked", chunk=c) for c in sizes if 4 * c <= T] or [
        Plan("chunked", chunk=max(1, T // 4))
    ]


def cheapest(plans: Sequence[Plan], cost: Callable[[Plan], float]) -> tuple[Plan, dict[str, float]]:
    """The first plan of the least cost, in seconds; and the least cost of each other algorithm."""
    costs = [cost(plan) for plan in plans]
    best = min(range(len(plans)), key=costs.__getitem__)
    chosen = replace(plans[best], seconds=costs[best])
    rivals: dict[str, float] = {}
    for plan, seconds in zip(plans, costs, strict=True):
        if plan.algorithm != chosen.algorithm:
            rivals[plan.algorithm] = min(seconds, rivals.get(plan.algorithm, seconds))
    return chosen, rivals


def fastest_on(workers: str, plan: Plan, rivals: dict[str, float]) -> str:
    """The reason for the plan of the least cost: how the best other algorithm compares."""
    if not rivals:
        return "too short to divide"
    rival = min(rivals, key=rivals.__getitem__)
    ratio = rivals[rival] / plan.seconds if plan.seconds else 1.0
    return f"fastest on {workers}; {rival} would take {ratio:.1f}x as long (estimated)"


def units(device_type: str, count: int) -> str:
    """Workers for people: "2 cores", "132 multiprocessors"."""
    return f"{count} {'multiprocessor' if device_type == 'cuda' else 'core'}{'s' * (count != 1)}"


def check_algorithm(algorithm: str, levels: int | None, T: int | None = None) -> None:
    """Raises TypeError or ValueError if the pair is not a valid request for T steps."""
    if not isinstance(algorithm, str):
        raise TypeError(f"algorithm: found {type(algorithm).__name__}, wanted str")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: found {algorithm!r}, wanted one of {', '.join(ALGORITHMS)}")
    if levels is None:
        return
    if not isinstance(levels, int) or isinstance(levels, bool):
        raise TypeError(f"levels: found {type(levels).__name__}, wanted int or None")
    if algorithm not in ("auto", "blelloch"):
        raise ValueError(
            f"levels: found {levels} with algorithm={algorithm!r}, wanted None "
            "(levels belong to algorithm='blelloch')"
        )
    if levels < 0 or (T is not None and levels > max_levels(T)):
        wanted = "at least 0" if T is None else f"0 to ceil(log2(T)) = {max_levels(T)} for T = {T}"
        raise ValueError(f"levels: found {levels}, wanted {wanted}")
