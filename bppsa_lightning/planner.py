"""Chooses the scan algorithm of a chain, and says why.

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
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

ALGORITHMS = ("auto", "linear", "chunked", "blelloch")

# A chunk's product grows and shrinks exponentially with its length: the bound keeps it in range
# for any chain that trains (kernels check, and walk a chunk step by step where it leaves it).
MAX_CHUNK = 64


@dataclass(frozen=True)
class Plan:
    """How one chain's backward is computed.

    Attributes:
        algorithm: "linear", "chunked" or "blelloch".
        chunk: steps in a chunk ("chunked"; 0 otherwise).
        levels: up-sweep levels ("blelloch"; 0 otherwise).
        seconds: estimated duration of the scan.
        reason: one line for people.
    """

    algorithm: str
    chunk: int = 0
    levels: int = 0
    seconds: float = 0.0
    reason: str = ""


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


def _workers(device: torch.device) -> int:
    if device.type == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return torch.get_num_threads()


def machine(device: torch.device) -> Machine:
    """The machine model of a device.

    The CPU's constants fit the scan of the RNN cell on two cores to a factor of about two. Gates
    and the products for parameters are not in the model: the whole backward of a recurrent layer
    takes four times the estimate in the median. A dense chain whose Jacobians exceed the caches
    takes up to ten times the estimate, as memory traffic is not in the model either. Linear was the
    fastest in all sizes measured, as estimated (experiments/records/planner_recurrent_cpu.json).
    CUDA's constants fit the dense scan on an H200 (experiments/records/h200_dense_scan.json).
    """
    if device.type == "cuda":
        return Machine(_workers(device), 6e9, 35e9, 0.22e-6, 0.25e-6, 0.0, 5e-6, groups=False)
    return Machine(_workers(device), 25e9, 25e9, 20e-9, 40e-9, 50e-9, 4e-6, groups=True)


def max_levels(T: int) -> int:
    """Levels of the full tree over T steps: ceil(log2(T))."""
    return (T - 1).bit_length() if T > 1 else 0


def estimate(plan: Plan, T: int, B: int, H: int, on: Machine) -> float:
    """Seconds of the scan under `plan`; see the module's text."""
    work = H * H / on.multiply_adds

    def walk(pieces: int, steps: float) -> float:
        """`pieces` of the chain, each walked by matrix-vector steps for every sample."""
        side_by_side = math.ceil(B / on.workers) if on.groups else 1
        tasks = pieces * math.ceil(B / side_by_side)
        return phase(tasks, steps * (on.step + side_by_side * work))

    def compose(pieces: float, steps: float) -> float:
        return phase(pieces * B, steps * (on.product + (H + 1) * H * H / on.composing))

    def phase(tasks: float, seconds: float) -> float:
        return on.barrier + math.ceil(tasks / on.workers) * (on.task + seconds) if tasks else 0.0

    if T == 0 or B == 0:
        return 0.0
    if plan.algorithm == "linear":
        return walk(1, T)
    if plan.algorithm == "chunked":
        chunks = -(-T // plan.chunk)
        inner = max(chunks - 2, 0)
        return compose(inner, plan.chunk) + walk(1, inner) + walk(chunks, min(plan.chunk, T))
    # Nodes and carries go sample by sample, also where a walk takes several at a time.
    nodes = -(-T // 2)
    seconds = compose(nodes, 2) + phase(nodes * B, 2 * (on.step + work))
    for _ in range(plan.levels - 1):
        nodes = -(-nodes // 2)
        seconds += compose(nodes, 1) + phase(nodes * B, on.step + work)
    return seconds + phase(B, nodes * (on.step + work))


def _candidates(T: int) -> list[Plan]:
    plans = [Plan("linear")]
    plans += [Plan("chunked", chunk=c) for c in (8, 16, 32, MAX_CHUNK) if 2 * c <= T]
    full = max_levels(T)
    plans += [Plan("blelloch", levels=level) for level in sorted({min(2, full), full}) if level]
    return plans


def choose(
    T: int,
    B: int,
    H: int,
    device: torch.device,
    algorithm: str = "auto",
    levels: int | None = None,
) -> Plan:
    """The plan for a chain.

    Args:
        T: steps. B: samples. H: state size.
        device: where the chain runs.
        algorithm: one of `ALGORITHMS`; anything but "auto" is obeyed.
        levels: up-sweep levels; implies "blelloch". None is the full tree.

    Raises:
        TypeError, ValueError: an argument is not one of those, or `levels` does not fit T or the
            algorithm; the message says what was found and what was wanted.
    """
    T, B, H = int(T), int(B), int(H)
    check_algorithm(algorithm, levels, T)
    return _choose(T, B, H, machine(device), algorithm, levels)


@lru_cache(maxsize=4096)
def _choose(T: int, B: int, H: int, on: Machine, algorithm: str, levels: int | None) -> Plan:
    if algorithm == "auto" and levels is None:
        plans = _candidates(T)
        costs = [estimate(p, T, B, H, on) for p in plans]
        best = min(range(len(plans)), key=costs.__getitem__)
        return replace(plans[best], seconds=costs[best], reason=_why(plans, costs, best, on))
    if algorithm in ("auto", "blelloch"):
        plan = Plan("blelloch", levels=max_levels(T) if levels is None else levels)
    elif algorithm == "chunked":
        plan = _chunked(T, B, H, on)
    else:
        plan = Plan("linear")
    return replace(plan, seconds=estimate(plan, T, B, H, on), reason="as asked")


def _chunked(T: int, B: int, H: int, on: Machine) -> Plan:
    # At least four chunks: with two, nothing would be composed.
    sizes = [c for c in (4, 8, 16, 32, MAX_CHUNK) if 4 * c <= T] or [max(1, T // 4)]
    plans = [Plan("chunked", chunk=c) for c in sizes]
    return min(plans, key=lambda p: estimate(p, T, B, H, on))


def _why(plans: list[Plan], costs: list[float], best: int, on: "Machine | DiagonalMachine") -> str:
    if len(plans) == 1:
        return "too short to divide"
    others = [i for i in range(len(plans)) if plans[i].algorithm != plans[best].algorithm]
    rival = min(others, key=costs.__getitem__)
    ratio = costs[rival] / costs[best] if costs[best] else 1.0
    return (
        f"{on.workers} workers: next best {plans[rival].algorithm} "
        f"is estimated {ratio:.1f}x as long"
    )


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


def keep(cell: str, T: int, B: int, H: int, device: torch.device) -> int:
    """How much the forward of a recurrent layer keeps for its backward.

    Computing the gates again costs time and saves memory: worth it where they would take much, and
    the cell is small. (The CUDA kernels cannot.)

    Returns:
        2: all gates (4 T B H numbers of a GRU, 5 of an LSTM), or 1: only what they can be computed
        from again (nothing beside the output, an LSTM's T B H cells).
    """
    numbers = {"gru": 4, "lstm": 5}.get(cell, 0) * T * B * H
    return 1 if numbers > 1 << 24 and H <= 64 and device.type != "cuda" else 2


def hand_over(cell: str, T: int, B: int, H: int, device: torch.device) -> str | None:
    """Why a recurrent module's call is better left to PyTorch's own kernels, or None.

    Args:
        cell: "rnn_tanh", "rnn_relu", "gru" or "lstm".
        T: steps. B: samples. H: hidden size.
        device: where it runs.
    """
    if device.type == "cuda":
        return "on CUDA the planner does not choose between cuDNN and the recurrent operators yet"
    if _stock_is_faster(cell, T, B, H):
        return f"at T={T}, B={B}, H={H} PyTorch's own kernel was measured to be faster"
    return None


def _stock_is_faster(cell: str, T: int, B: int, H: int) -> bool:
    """What the grid of experiments/benchmark_recurrent.py showed, two cores, float32.

    Where a call is short, rearranging the weights takes longer than the steps do, or Python longer
    than both; and a large W_hh is read again for each step of each group of samples.
    """
    if cell == "lstm":
        if H > 384:
            return T < 500 or B < 16
        return (T <= 10 or B == 1) if H > 192 else T == 1 and H > 96
    if cell == "gru":
        if T == 1:
            return H > 48
        return T <= 10 and (H > 384 or (H > 192 and B < 16))
    return T <= 2 or (T <= 10 and (H > 384 or (H > 192 and B < 4)))


# --- Diagonal chains -----------------------------------------------------------------------
#
# A diagonal chain is N = B*H chains of one number, and its products are as cheap as its steps: what
# counts is memory (each step of an element is read and written once), and where elements are few
# the time that one step waits for the one before it. Chunks pass over memory twice.


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
        return DiagonalMachine(_workers(device), 80e-9, 0.45e-9, 32, 5e-6)
    return DiagonalMachine(_workers(device), 1.2e-9, 0.42e-9, 64, 4e-6)


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
    reason = "as asked" if asked else _why(plans, costs, best, on)
    return replace(plans[best], seconds=costs[best], reason=reason)
