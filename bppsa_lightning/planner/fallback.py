"""When a recurrent layer's call is better left to PyTorch's own kernels, and why.

T steps, B batch, I input, H state.
"""

import torch

from bppsa_lightning.planner import bfloat16, fallback_cuda, hand_over, machine
from bppsa_lightning.planner.request import Request

# On the CPU, by all that they depend on; as many as a run with samples of any length may ask for.
_answers: dict[tuple[object, ...], str | None] = {}
_MOST_ANSWERS = 4096
_UNKNOWN = "?"
machine.keeps_in(_answers)


def fallback_reason(request: Request) -> str | None:
    """Why a recurrent module's call is better left to PyTorch's own kernels, or None.

    An algorithm that is asked for by name is obeyed: only "auto" may hand over for speed.
    """
    # cell, T, B, H, device and algorithm; on CUDA there is never an answer.
    asked = request[:6], request.total_steps, request.bfloat16, torch.get_num_threads()
    answer = _answers.get(asked, _UNKNOWN)
    if answer is not _UNKNOWN:
        return answer
    if request.device.type == "cuda":
        return fallback_cuda.fallback_reason(request)
    if len(_answers) >= _MOST_ANSWERS:
        _answers.clear()
    reason = _answers[asked] = _reason_on_cpu(request)
    return reason


def _reason_on_cpu(request: Request) -> str | None:
    if request.algorithm != "auto":
        return None
    cell, T, B, H, N = request.cell, request.T, request.B, request.H, request.total_steps
    if request.bfloat16 is not None:
        if not bfloat16.pytorch_is_faster(cell, request.bfloat16, T, B, H):
            return None
        return f"seq_len {T}, batch {B}, hidden {H} in bfloat16: PyTorch's kernel measured faster"
    if not hand_over.pytorch_is_faster(cell, T, B, H, N):
        return None
    lengths = "" if N is None else ", different lengths"
    return f"seq_len {T}, batch {B}, hidden {H}{lengths}: PyTorch's kernel measured faster"
