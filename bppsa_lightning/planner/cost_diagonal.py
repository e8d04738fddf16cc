"""Diagonal chains: the cost model of every scan algorithm.

A diagonal chain is N = B*H chains of one number, and its products are as cheap as its steps: what
counts is memory (each step of an element is read and written once), and where elements are few
the time that one step waits for the one before it. Chunks pass over memory twice.
"""

import math
from dataclasses import dataclass

import torch

from bppsa_lightning.planner.machine import cpu
from bppsa_lightning.planner.plan import Plan, ceil_div, chunked_plans
from bppsa_lightning.planner.tables import shipped


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


def machine(cell: str, device: torch.device, workers: int) -> DiagonalMachine:
    """The machine model of a device with so many workers.

    The constants are in the tables. The CPU's fit float32 chains out of cache on one core to a
    factor of about two; CUDA's are reasoned, not measured.
    """
    if device.type == "cuda":
        return DiagonalMachine(workers, **shipped()["nvidia_h200"]["diagonal"])
    return DiagonalMachine(workers, **cpu()["diagonal"])


def estimate(plan: Plan, T: int, B: int, H: int, on: DiagonalMachine) -> float:
    """Seconds of the scan of a diagonal chain of T steps, B samples and state size H."""
    N = B * H

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
        chunks = ceil_div(T, plan.chunk)
        return walk(N, chunks) + sum(walk(N * max(chunks - k, 0), plan.chunk) for k in (1, 0))
    seconds, nodes = 0.0, ceil_div(T, 2)
    for _ in range(plan.levels):
        seconds += 2 * walk(N * nodes, 2)
        nodes = ceil_div(nodes, 2)
    return seconds + walk(N, nodes)


def candidates(T: int, algorithm: str) -> list[Plan]:
    """What comes into question for "auto", "linear" or "chunked"."""
    sizes = (32, 64, 128, 256, 512)
    if algorithm == "chunked":
        return chunked_plans(T, sizes)
    plans = [Plan("linear")]
    if algorithm == "auto":
        plans += [Plan("chunked", chunk=c) for c in sizes if 4 * c <= T]
    return plans
