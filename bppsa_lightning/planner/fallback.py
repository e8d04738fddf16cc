"""When a recurrent layer's call is better left to PyTorch's own kernels, and why.

T steps, B batch, I input, H state.
"""

import torch

from bppsa_lightning.planner import fallback_cuda, hand_over, machine, ratios
from bppsa_lightning.planner.request import INFERENCE, Request

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
    of_numbers = request.bfloat16, request.mode
    asked = request[:6], request.total_steps, of_numbers, torch.get_num_threads()
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
    # (Of samples of different lengths training in float32 alone was measured.)
    without = request.mode == INFERENCE and N is None
    if request.bfloat16 or without:
        faster = ratios.pytorch_is_faster(cell, request.bfloat16, request.mode, T, B, H)
    else:
        faster = hand_over.pytorch_is_faster(cell, T, B, H, N)
    if not faster:
        return None
    how = "" if N is None else ", different lengths"
    how += " in bfloat16" * request.bfloat16 + " without gradients" * without
    return f"seq_len {T}, batch {B}, hidden {H}{how}: PyTorch's kernel measured faster"
