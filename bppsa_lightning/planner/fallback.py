"""When a recurrent layer's call is better left to PyTorch's own kernels, and why.

T steps, B batch, I input, H state.
"""

from functools import lru_cache

import torch

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import choose, cost_cuda
from bppsa_lightning.planner.request import Request

# PyTorch's own kernels do not take longer sequences on CUDA.
_MAX_STEPS_CUDNN = 65535

# Bytes of shared memory a block can have on any GPU from compute capability 7.5 on.
_SHARED_MEMORY = 64 * 1024

# Samples of different lengths: up to so many steps PyTorch's own kernel was measured to be faster
# (experiments/benchmark_packed.py), and where more than half of the padded steps are padding.
_MAX_STEPS_PACKED = {"RNN": (13, 13), "GRU": (3, 8), "LSTM": (4, 8)}


def fallback_reason(request: Request) -> str | None:
    """Why a recurrent module's call is better left to PyTorch's own kernels, or None."""
    if request.device.type == "cuda":
        return _unfit_for_cuda(request)
    T, B, H = request.T, request.B, request.H
    N = T * B if request.total_steps is None else request.total_steps
    if _pytorch_is_faster(CELLS[request.cell].kind, T, B, H, N):
        lengths = "" if N == T * B else ", different lengths"
        return f"seq_len {T}, batch {B}, hidden {H}{lengths}: PyTorch's kernel measured faster"
    return None


def _unfit_for_cuda(request: Request) -> str | None:
    H, dtype = request.H, request.dtype
    # Two vectors of all gates fit into the shared memory of a block on any GPU.
    bytes = 8 if dtype == torch.float64 else 4
    limit = min(4096, _SHARED_MEMORY // (2 * CELLS[request.cell].gates * bytes))
    if limit < H:
        return f"hidden {H}: on CUDA the recurrent kernels take at most {limit} units of this cell"
    cudnn = torch.backends.cudnn
    if request.T > _MAX_STEPS_CUDNN:
        return None  # PyTorch fails
    if not (cudnn.enabled and cudnn.is_available()):  # it launches the kernels of each step apart
        return cost_cuda.not_resident(cost_cuda.size_of(request, *choose.gpu(request.device)))
    if dtype != torch.float32 and H > cost_cuda.MOST_COMPOSED:
        # A small state's steps wait for each other in any dtype; a large one's are arithmetic.
        name, least = str(dtype).removeprefix("torch."), cost_cuda.MOST_COMPOSED
        return f"hidden {H} in {name}: above {least} only float32 was measured beside cuDNN"
    return _cudnn_is_faster(request, *choose.gpu(request.device))


@lru_cache(maxsize=4096)
def _cudnn_is_faster(request: Request, processors: int, clusters: bool) -> str | None:
    lengths = None
    if request.total_steps is not None and request.padded_steps is not None:
        lengths = request.total_steps, request.padded_steps
    layer = cost_cuda.size_of(request, processors, clusters)
    return cost_cuda.fallback_reason(layer, request.layers, request.directions, lengths)


def _pytorch_is_faster(kind: str, T: int, B: int, H: int, N: int) -> bool:
    """What the grid of experiments/benchmark_recurrent.py showed, two cores, float32.

    Where a call is short, rearranging the weights takes longer than the steps do, or Python longer
    than both; and a large W_hh is read again for each step of each group of samples. To spread N
    steps of samples of different lengths over T * B takes longer still.
    """
    if N != T * B and _MAX_STEPS_PACKED[kind][2 * N < T * B] >= T:
        return True
    if kind == "LSTM":
        short = T <= 2 or (T <= 10 and B <= 128)
        if H > 384:
            return short or B < 16 or (T < 500 and B < 32)
        if H > 192:
            return short or B == 1 or (T < 500 and B < 4)
        if T == 1 and B > 64 and H > 24:  # no slower on two cores, but on one of an AMD EPYC
            return True
        return H > 96 and (T == 1 or (T <= 10 and B == 1))
    if kind == "GRU":
        if T == 1:
            return H > 48
        return T <= 10 and (H > 384 or (H > 192 and B < 16))
    return T <= 2 or (T <= 10 and (H > 384 or (H > 192 and B < 4)))
