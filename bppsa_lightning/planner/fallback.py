"""When a recurrent layer's call is better left to PyTorch's own kernels, and why.

T steps, B batch, I input, H state.
"""

from functools import lru_cache

import torch

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import choose, cost_cuda, hand_over
from bppsa_lightning.planner.request import Request

# PyTorch's own kernels do not take longer sequences on CUDA.
_MAX_STEPS_CUDNN = 65535

# Bytes of shared memory a block can have on any GPU from compute capability 7.5 on.
_SHARED_MEMORY = 64 * 1024


def fallback_reason(request: Request) -> str | None:
    """Why a recurrent module's call is better left to PyTorch's own kernels, or None.

    An algorithm that is asked for by name is obeyed: only "auto" may hand over for speed.
    """
    if request.device.type == "cuda":
        return _unfit_for_cuda(request)
    if request.algorithm != "auto":
        return None
    cell, T, B, H, N = request.cell, request.T, request.B, request.H, request.total_steps
    if not hand_over.pytorch_is_faster(cell, T, B, H, N):
        return None
    lengths = "" if N is None else ", different lengths"
    return f"seq_len {T}, batch {B}, hidden {H}{lengths}: PyTorch's kernel measured faster"


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
