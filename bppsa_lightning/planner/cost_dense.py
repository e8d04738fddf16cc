"""Dense chains of given Jacobians: the cost model of every scan algorithm.

The estimate of an algorithm is work over speed along its critical path (the table of the design,
arXiv:1907.10134, section 3.6), for a chain of T steps, B samples and state size H on `workers`
workers (cores, or multiprocessors):

    linear     T steps in sequence; the batch in parallel
    chunked    chunks compose in parallel (H^3 a step), carries pass in sequence (H^2 a chunk),
               chunks replay in parallel (H^2 a step)
    blelloch   levels of products (H^3 a node), the roots in sequence, levels of matrix-vector
               products, pairs replay in parallel

A product costs H times a matrix-vector step, so a parallel scan pays only where workers would
idle otherwise: many more workers than samples, and a small state.
"""

import math
from dataclasses import dataclass

import torch

from bppsa_lightning.planner.machine import cpu
from bppsa_lightning.planner.plan import Plan, ceil_div, chunked_plans, max_levels
from bppsa_lightning.planner.tables import shipped

# A chunk's product grows and shrinks exponentially with its length: the bound keeps it in range
# for any chain that trains (kernels check, and walk a chunk step by step where it leaves it).
MAX_CHUNK = 64


@dataclass(frozen=True)
class Machine:
    """What the cost model knows of a device.

    Attributes:
        workers: cores or multiprocessors that work side by side.
        multiply_adds: a second and worker, of a matrix-vector step, float32.
        composing: likewise of a product of Jacobians.
        step: seconds of one dependent matrix-vector step beside its multiply-adds.
        product: likewise of one product of a Jacobian with the product so far.
        task: seconds to set up one parallel task.
        barrier: seconds to start or join a parallel phase.
        groups: whether a worker steps several samples side by side (or one after the other).
    """

    workers: int
    multiply_adds: float
    composing: float
    step: float
    product: float
    task: float
    barrier: float
    groups: bool


def machine(cell: str, device: torch.device, workers: int) -> Machine:
    """The machine model of a device with so many workers.

    The constants are in the tables. The CPU's fit chains in cache on two cores to a factor of about
    two; where the Jacobians exceed the caches a walk takes three or four times the estimate, as
    memory traffic is not in the model. CUDA's fit an H200, whichever GPU it is.
    """
    if device.type == "cuda":
        return Machine(workers, **shipped()["nvidia_h200"]["dense"], groups=False)
    return Machine(workers, **cpu()["dense"], groups=True)


def estimate(plan: Plan, T: int, B: int, H: int, on: Machine) -> float:
    """Seconds of the scan under `plan` of T steps, B samples and state size H."""
    work = H * H / on.multiply_adds

    def walk(pieces: int, steps: float) -> float:
        """`pieces` of the chain, each walked by matrix-vector steps for every sample."""
        samples = ceil_div(B, on.workers) if on.groups else 1
        return phase(pieces * ceil_div(B, samples), steps * (on.step + samples * work))

    def compose(pieces: float, steps: float) -> float:
        return phase(pieces * B, steps * (on.product + (H + 1) * H * H / on.composing))

    def phase(tasks: float, seconds: float) -> float:
        return on.barrier + math.ceil(tasks / on.workers) * (on.task + seconds) if tasks else 0.0

    if T == 0 or B == 0:
        return 0.0
    if plan.algorithm == "linear":
        return walk(1, T)
    if plan.algorithm == "chunked":
        chunks = ceil_div(T, plan.chunk)
        inner = max(chunks - 2, 0)
        return compose(inner, plan.chunk) + walk(1, inner) + walk(chunks, min(plan.chunk, T))
    # Nodes and carries go sample by sample, also where a walk takes several at a time.
    nodes = ceil_div(T, 2)
    seconds = compose(nodes, 2) + phase(nodes * B, 2 * (on.step + work))
    for _ in range(plan.levels - 1):
        nodes = ceil_div(nodes, 2)
        seconds += compose(nodes, 1) + phase(nodes * B, on.step + work)
    return seconds + phase(B, nodes * (on.step + work))


def candidates(T: int, algorithm: str) -> list[Plan]:
    """What comes into question for "auto", "linear" or "chunked"."""
    if algorithm == "chunked":
        return chunked_plans(T, (4, 8, 16, 32, MAX_CHUNK))
    if algorithm == "linear":
        return [Plan("linear")]
    plans = [Plan("linear")]
    plans += [Plan("chunked", chunk=c) for c in (8, 16, 32, MAX_CHUNK) if 2 * c <= T]
    full = max_levels(T)
    return plans + [Plan("blelloch", levels=n) for n in sorted({min(2, full), full}) if n]
