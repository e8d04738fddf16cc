"""Recurrent layers on a CPU: the cost model of a whole backward, by each scan algorithm.

An estimate is a sum of terms in the sizes, with coefficients in seconds for each cell, fitted to
what was measured on the machine of the table. The terms count what lies on the path of the busiest
of `threads` threads: steps that wait for each other; steps of samples, and their multiply-adds;
products of Jacobians, and theirs; parallel phases. A product costs H times a step, so a parallel
scan pays only where threads would idle otherwise: many more threads than samples, a small state.

T steps, B batch, H size of a state.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner.cost_dense import candidates
from bppsa_lightning.planner.machine import cpu
from bppsa_lightning.planner.plan import Plan, ceil_div

__all__ = ["Machine", "candidates", "estimate", "machine", "terms"]

# On more than twice the threads of the table nothing was measured: there a parallel scan must be
# estimated to be so many times as fast as the linear one.
_DOUBT = 1.5


@dataclass(frozen=True)
class Machine:
    """A cell's coefficients, those of `terms`; and whether they were measured about here."""

    workers: int
    coefficients: Sequence[float]
    measured: bool


def machine(cell: str, device: torch.device, workers: int) -> Machine:
    """The model of a cell on so many threads of this CPU.

    A cell that was not measured is taken for an LSTM, the slowest of those that were.
    """
    scan = cpu()["scan"]
    coefficients = scan.get(CELLS[cell].kind, scan["LSTM"])
    return Machine(workers, coefficients, workers <= 2 * scan["threads"])


def estimate(plan: Plan, T: int, B: int, H: int, on: Machine) -> float:
    """Seconds of the backward under `plan`, parameter gradients included."""
    if T == 0 or B == 0:
        return 0.0
    counts = terms(plan, T, B, H, on.workers)
    seconds = sum(count * c for count, c in zip(counts, on.coefficients, strict=True))
    return seconds if on.measured or plan.algorithm == "linear" else _DOUBT * seconds


def terms(plan: Plan, T: int, B: int, H: int, threads: int) -> tuple[float, ...]:
    """What the coefficients are for: a call; steps that wait for each other; steps of a sample and
    H^2 of each; products and H^2 (H + 1) of each; starts of all threads, log2 of them each."""
    samples = ceil_div(B, threads)
    if plan.algorithm == "linear" or not (plan.chunk or plan.levels):
        steps, walked, composed, phases = T, T * samples, 0, 1
    elif plan.algorithm == "chunked":
        C = plan.chunk
        chunks = ceil_div(T, C)
        inner = max(chunks - 2, 0)
        composed = C * ceil_div(inner * B, threads)
        walked = C * ceil_div(chunks * B, threads) + inner * samples
        steps, phases = 2 * C + inner, 3
    else:
        nodes = ceil_div(T, 2)
        composed = walked = 2 * ceil_div(nodes * B, threads)
        for _ in range(plan.levels - 1):
            nodes = ceil_div(nodes, 2)
            composed += ceil_div(nodes * B, threads)
            walked += ceil_div(nodes * B, threads)
        walked += nodes * samples
        steps, phases = 2 * plan.levels + 2 + nodes, 2 * plan.levels + 1
    products = float(H * H * (H + 1)) * composed
    woken = phases * (1 + math.log2(threads))
    return 1.0, steps, walked, float(H * H) * walked, composed, products, woken
