"""One request, one plan: the cheapest of those that come into question, by the cost models."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from bppsa_lightning import _library
from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import (
    cost_cuda,
    cost_dense,
    cost_diagonal,
    cost_recurrent,
    gpu_tables,
    kernels,
)
from bppsa_lightning.planner.gpu_tables import GpuTable
from bppsa_lightning.planner.machine import keeps
from bppsa_lightning.planner.plan import (
    Plan,
    Saved,
    cheapest,
    check_algorithm,
    fastest_on,
    max_levels,
    units,
    workers,
)
from bppsa_lightning.planner.request import DENSE, DIAGONAL, Request

_WINDOWS_GAIN = 1.5
_MODELS: dict[str, Any] = {DENSE: cost_dense, DIAGONAL: cost_diagonal}  # others are recurrent


def plan(request: Request) -> Plan:
    """The plan of a chain's backward; requests that were seen before cost a look-up.

    Raises:
        TypeError, ValueError: the request's algorithm or levels are none, or do not fit each other
            or T; the message says what was found and what was wanted.
    """
    check_algorithm(request.algorithm, request.levels, request.T)
    if request.device.type == "cuda" and request.cell in CELLS:
        return plan_on_cuda(request, *gpu(request.device), gpu_tables.nearest(request.device))
    return _plan(request, workers(request.device))


@keeps
@lru_cache(maxsize=4096)
def _plan(request: Request, workers: int) -> Plan:
    T, B, H = request.T, request.B, request.state_size
    algorithm, levels = request.algorithm, request.levels
    model = _MODELS.get(request.cell, cost_recurrent)
    if algorithm == "blelloch" or levels is not None:
        plans = [Plan("blelloch", levels=max_levels(T) if levels is None else levels)]
    else:
        plans = model.candidates(T, algorithm)
    on = model.machine(request.cell, request.device, workers)
    chosen, rivals = cheapest(plans, lambda plan: model.estimate(plan, T, B, H, on))
    reason = "as asked"
    if algorithm == "auto" and levels is None:
        reason = fastest_on(units(request.device.type, workers), chosen, rivals)
    chosen = replace(chosen, reason=reason)
    return replace(chosen, saved=saved(request)) if request.cell in CELLS else chosen


@lru_cache(maxsize=4096)
def plan_on_cuda(request: Request, processors: int, clusters: bool, table: GpuTable) -> Plan:
    """The plan of a recurrent layer on a GPU of a table, as `gpu` has it."""
    size = cost_cuda.size_of(request, processors, clusters, table)
    return replace(cost_cuda.choose(size, request.algorithm), saved=saved(request))


@keeps
@lru_cache(maxsize=64)
def costs_of_windows(cell: str, H: int, device: torch.device, stock: bool) -> tuple[float, float]:
    """What windows of time cost a GPU's kernels, cuDNN's or ours: `choose_cut`'s `call` and
    `rows_for_twice`."""
    request, table = Request(cell, 1, 1, H, device), gpu_tables.nearest(device)
    return cost_cuda.size_of(request, *gpu(device), table).costs_of_windows(stock)


@keeps
@lru_cache(maxsize=4096)
def windows_pay(request: Request) -> bool:
    """Whether "auto" tries windows of time on a GPU, for a call that is not left to cuDNN.

    Where they are estimated to be `_WINDOWS_GAIN` times as fast: each pass of theirs waits for the
    device, and estimates are wrong.
    """
    small = request.H <= kernels.MOST_COMPOSED and not request.P
    if not small or kernels.arithmetic(request.dtype) != "float32":
        return False  # not measured
    table = gpu_tables.own(request.device)
    if table is None or request.total_steps is not None:
        return False
    size = cost_cuda.size_of(request, *gpu(request.device), table)
    return size.gain_of_windows() >= _WINDOWS_GAIN


@lru_cache(maxsize=64)
def gpu(device: torch.device) -> tuple[int, bool]:
    """Its multiprocessors, and whether blocks can share a cluster, and are built to.

    Their kernels are compiled for the least architecture that has clusters (csrc/cuda/cuda.cmake).
    """
    major, minor = torch.cuda.get_device_capability(device)
    built = [a for a in _library.recurrent_architectures() if a >= 90]
    return workers(device), bool(built) and 10 * major + minor >= built[0]


def saved(request: Request) -> Saved:
    """How much the forward of a recurrent layer saves for its backward.

    Computing the gates again costs time and saves memory: worth it where they would take much, and
    the cell is small. (A GPU has more of its own, and no cache to stay in: there from a GiB on. Its
    kernels need the gates where there is a projection.)
    """
    H = request.state_size
    numbers = CELLS[request.cell].saved * request.T * request.B * H
    if request.device.type == "cuda":
        if numbers <= 1 << 28 or request.P:
            return Saved.GATES
        again = kernels.option(request.cell, kernels.arithmetic(request.dtype), "gates_again")
        return Saved.STATES if gpu_tables.admits(request.device, again) else Saved.GATES
    return Saved.STATES if numbers > 1 << 24 and H <= 64 else Saved.GATES
