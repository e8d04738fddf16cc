"""When a recurrent layer's call is better left to PyTorch's own kernels, and why.

T steps, B batch, I input, H state.
"""

from bppsa_lightning.planner import fallback_cuda, hand_over
from bppsa_lightning.planner.request import Request


def fallback_reason(request: Request) -> str | None:
    """Why a recurrent module's call is better left to PyTorch's own kernels, or None.

    An algorithm that is asked for by name is obeyed: only "auto" may hand over for speed.
    """
    if request.device.type == "cuda":
        return fallback_cuda.fallback_reason(request)
    if request.algorithm != "auto":
        return None
    cell, T, B, H, N = request.cell, request.T, request.B, request.H, request.total_steps
    if not hand_over.pytorch_is_faster(cell, T, B, H, N):
        return None
    lengths = "" if N is None else ", different lengths"
    return f"seq_len {T}, batch {B}, hidden {H}{lengths}: PyTorch's kernel measured faster"
