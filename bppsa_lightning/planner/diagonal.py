"""Diagonal chains: the cost model of every scan algorithm, and the choice.

A diagonal chain is N = B*H chains of one number, and its products are as cheap as its steps: what
counts is memory (each step of an element is read and written once), and where elements are few
the time that one step waits for the one before it. Chunks pass over memory twice.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from bppsa_lightning.planner.plan import Plan, check_algorithm, max_levels, why, workers


@dataclass(frozen=True)
class DiagonalMachine:
    """What the cost model of diagonal chains knows of a device.

    Attributes:
        workers: cores or multiprocessors that work side by side.
        step: seconds that a walk takes for a step, however few its elements.
        element: seconds a worker takes for a step of each of its elements, where they are many.
        block: elements that one worker takes at the least.
        barrier: seconds to start or join a parallel phase.
    """

    workers: int
    step: float
    element: float
    block: int
    barrier: float


def diagonal_machine(device: torch.device) -> DiagonalMachine:
    """The machine model of a device.

    The CPU's constants fit float32 chains out of cache on one core to a factor of about two;
    CUDA's are reasoned, not measured.
    """
    if device.type == "cuda":
        return DiagonalMachine(workers(device), 80e-9, 0.45e-9, 32, 5e-6)
    return DiagonalMachine(workers(device), 1.2e-9, 0.42e-9, 64, 4e-6)


def estimate_diagonal(plan: Plan, T: int, N: int, on: DiagonalMachine) -> float:
    """Seconds of the scan of a diagonal chain of T steps and N elements under `plan`."""

    def walk(elements: int, steps: int) -> float:
        if not elements:
            return 0.0
        workers = min(on.workers, math.ceil(elements / on.block))
        return on.barrier + steps * max(on.step, elements * on.element / workers)

    if T == 0 or N == 0:
        return 0.0
    if plan.algorithm == "linear":
        return walk(N, T)
    if plan.algorithm == "chunked":
        chunks = -(-T // plan.chunk)
        return walk(N, chunks) + sum(walk(N * max(chunks - k, 0), plan.chunk) for k in (1, 0))
    seconds, nodes = 0.0, -(-T // 2)
    for _ in range(plan.levels):
        seconds += 2 * walk(N * nodes, 2)
        nodes = -(-nodes // 2)
    return seconds + walk(N, nodes)


def choose_diagonal(
    T: int,
    N: int,
    device: torch.device,
    algorithm: str = "auto",
    levels: int | None = None,
) -> Plan:
    """As `choose`, for a diagonal chain of N = B*H elements."""
    T, N = int(T), int(N)
    check_algorithm(algorithm, levels, T)
    return _choose_diagonal(T, N, diagonal_machine(device), algorithm, levels)


@lru_cache(maxsize=4096)
def _choose_diagonal(
    T: int, N: int, on: DiagonalMachine, algorithm: str, levels: int | None
) -> Plan:
    if algorithm == "blelloch" or levels is not None:
        plans = [Plan("blelloch", levels=max_levels(T) if levels is None else levels)]
    else:
        linear = [Plan("linear")] if algorithm in ("auto", "linear") else []
        sizes = [c for c in (32, 64, 128, 256, 512) if 4 * c <= T]
        if algorithm == "chunked":
            sizes = sizes or [max(1, T // 4)]
        chunked = [] if algorithm == "linear" else [Plan("chunked", chunk=c) for c in sizes]
        plans = linear + chunked
    costs = [estimate_diagonal(p, T, N, on) for p in plans]
    best = min(range(len(plans)), key=costs.__getitem__)
    asked = algorithm != "auto" or levels is not None
    reason = "as asked" if asked else why(plans, costs, best, on.workers)
    return replace(plans[best], seconds=costs[best], reason=reason)
