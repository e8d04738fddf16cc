"""When a recurrent layer's call on CUDA is better left to PyTorch's own kernels, and why.

"auto" scans only what is known: kernels that gave right results on this model of GPU, or on this
very machine, and that are estimated to be faster than cuDNN from what was timed there.

T steps, B batch, I input, H state.
"""

from functools import lru_cache

import torch

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import choose, cost_cuda, gpu_tables, kernels
from bppsa_lightning.planner.gpu_tables import CALIBRATE, GpuTable
from bppsa_lightning.planner.machine import keeps
from bppsa_lightning.planner.plan import Plan
from bppsa_lightning.planner.request import Request

# PyTorch's own kernels do not take longer sequences.
_MAX_STEPS_CUDNN = 65535

# The largest hidden size in 16 bits that was measured beside it, 2.0 to 3.6 times as fast
# (experiments/records/h200_layers.json). That was float16; bfloat16 is taken to be no faster.
_MEASURED = {torch.float16: 64, torch.bfloat16: 64}

# Bytes of shared memory a block can have on any GPU from compute capability 7.5 on.
_SHARED_MEMORY = 64 * 1024


def fallback_reason(request: Request) -> str | None:
    """Why a recurrent module's call is better left to PyTorch's own kernels, or None.

    An algorithm that is asked for by name is obeyed as far as the kernels reach.
    """
    if request.algorithm != "auto":
        return _too_large(request)
    cudnn = torch.backends.cudnn
    available = cudnn.enabled and cudnn.is_available()
    table = gpu_tables.own(request.device)
    return reason_of_auto(request, table, *choose.gpu(request.device), available)


@keeps
@lru_cache(maxsize=4096)
def reason_of_auto(
    request: Request, table: GpuTable | None, processors: int, clusters: bool, cudnn: bool = True
) -> str | None:
    """Why "auto" leaves a call to PyTorch on a GPU of this table, or None.

    Args:
        table: None if there is none. processors, clusters: as `choose.gpu` has them.
        cudnn: whether PyTorch uses it.
    """
    plan = choose.plan_on_cuda(request, processors, clusters, table or gpu_tables.DEFAULT)
    reason = _too_large(request) or _unverified(request, table, clusters, (plan,))
    if reason is not None or request.T > _MAX_STEPS_CUDNN:  # where PyTorch fails
        return reason
    assert table is not None
    layer = cost_cuda.size_of(request, processors, clusters, table)
    if not cudnn:  # PyTorch launches the kernels of each step apart
        return cost_cuda.not_resident(layer)
    H, dtype = request.H, request.dtype
    measured = _MEASURED.get(dtype, kernels.MOST_COMPOSED)
    if dtype != torch.float32 and measured < H:
        # A small state's steps wait for each other in any dtype; a large one's are arithmetic.
        name = str(dtype).removeprefix("torch.")
        return f"hidden {H} in {name}: above {measured} only float32 was measured beside cuDNN"
    lengths = None
    if request.total_steps is not None and request.padded_steps is not None:
        lengths = request.total_steps, request.padded_steps
    return cost_cuda.fallback_reason(layer, request.layers, request.directions, lengths)


@torch.compiler.assume_constant_result
def fallback_reason_when_compiled(
    device: torch.device,
    cell: str,
    dtype: torch.dtype,
    I: int,
    H: int,
    P: int,
    layers: int,
    directions: int,
    lengths: bool,
    algorithm: str,
) -> str | None:
    """`fallback_reason` for a call on CUDA of any T and B, which may be symbols in a graph.

    Args:
        lengths: whether samples may have different lengths.
        device, cell, dtype, I, H, P, layers, directions, algorithm: as in `Request`.
    """
    if torch.device(device).type != "cuda":
        return None
    steps = 1 << 20 if lengths else None
    request = Request(
        cell, 1 << 20, 1, H, torch.device(device), algorithm, None, I, P, layers, directions,
        dtype, steps,
    )  # fmt: skip
    reason = _too_large(request)
    if reason is not None or algorithm != "auto":
        return reason
    if kernels.MOST_RESIDENT < H:
        limit = f"under torch.compile at most {kernels.MOST_RESIDENT} hidden units on CUDA"
        return f"{limit} (found {H})"
    plans = [Plan("linear")]
    plans += [Plan("chunked", chunk=8)] if kernels.MOST_COMPOSED >= H else []
    clusters = choose.gpu(request.device)[1]
    return _unverified(request, gpu_tables.own(request.device), clusters, tuple(plans))


def _too_large(request: Request) -> str | None:
    """Two vectors of all gates fit into the shared memory of a block on any GPU."""
    bytes = 8 if request.dtype == torch.float64 else 4
    shared = _SHARED_MEMORY // (2 * CELLS[request.cell].gates * bytes)
    limit = min(kernels.MOST_UNITS, shared)
    if limit >= request.H:
        return None
    return (
        f"hidden {request.H}: on CUDA the recurrent kernels take at most {limit} units of this cell"
    )


def _unverified(
    request: Request, table: GpuTable | None, clusters: bool, plans: tuple[Plan, ...]
) -> str | None:
    """Why the kernels of a call, under any of these plans, are not trusted; None if they are."""
    if table is None:
        name = gpu_tables.hardware_of(request.device)["name"]
        return f"the CUDA kernels were not tested on this GPU ({name}): {CALIBRATE}"
    names = set().union(*(kernels.of_call(request, clusters, plan) for plan in plans))
    wrong = sorted(name for name in names if name in table.wrong)
    if wrong:
        return (
            f"CUDA kernel {wrong[0]} failed its test on this {table.gpu}: {table.wrong[wrong[0]]}"
        )
    unknown = sorted(names - table.right)
    if unknown:
        return f"CUDA kernel {unknown[0]} was not tested on an {table.gpu}: {CALIBRATE}"
    if cost_cuda.kind(request.cell) not in table.cells:
        return f"{CELLS[request.cell].label} was not timed on this {table.gpu}: {CALIBRATE}"
    return None
