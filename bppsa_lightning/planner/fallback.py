"""When a recurrent layer's call is better left to PyTorch's own kernels, and why.

T steps, B batch, I input, H state.
"""

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import fallback_cuda
from bppsa_lightning.planner.request import Request

# Samples of different lengths: up to so many steps PyTorch's own kernel was measured to be faster
# (experiments/benchmark_packed.py), and where more than half of the padded steps are padding.
_MAX_STEPS_PACKED = {"RNN": (13, 13), "GRU": (3, 8), "LSTM": (4, 8)}


def fallback_reason(request: Request) -> str | None:
    """Why a recurrent module's call is better left to PyTorch's own kernels, or None."""
    if request.device.type == "cuda":
        return fallback_cuda.fallback_reason(request)
    T, B, H = request.T, request.B, request.H
    N = T * B if request.total_steps is None else request.total_steps
    if _pytorch_is_faster(CELLS[request.cell].kind, T, B, H, N):
        lengths = "" if N == T * B else ", different lengths"
        return f"seq_len {T}, batch {B}, hidden {H}{lengths}: PyTorch's kernel measured faster"
    return None


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
