"""Compute dtype, and the dtype PyTorch would return.

16-bit results are those of a float32 recurrence, rounded once: more exact than PyTorch's.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from bppsa_lightning.planner.request import INFERENCE, TRAINING
from bppsa_lightning.recurrent.config import Stack

_WIDENED = (torch.bfloat16, torch.float16)


def of_pytorch(input: Tensor) -> torch.dtype:
    """The dtype in which PyTorch would compute: autocast's, or the input's."""
    kind = input.device.type
    if input.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return _lowered(input)
    return input.dtype


def results(
    config: Stack, input: Tensor, states: Sequence[Tensor], packed: bool
) -> tuple[torch.dtype, torch.dtype] | None:
    """PyTorch's dtypes of (output and h_n, c_n); None if they are the input's, as it is computed.

    Under autocast PyTorch multiplies in 16 bits; on the CPU, where a cell then adds its old state,
    the state's own dtype takes part in the result's. On CUDA all is 16 bits, and cuDNN's float16.
    states are (h0,), (h0, c0) or ().
    """
    device, dtype = input.device, input.dtype
    # Any device's, first: it costs a tenth of asking for one device's.
    lowered = torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device.type)
    if not lowered or dtype == torch.float64:
        return (dtype, dtype) if dtype in _WIDENED else None
    low = _lowered(input)
    held = torch.promote_types(low, states[-1].dtype if states else dtype)
    if config.cell.kind == "RNN" or device.type == "cuda":
        return low, low
    if config.cell.kind == "GRU":
        return held, held
    if config.projected:
        return low, held
    return (low, low) if not packed and _by_onednn(input) else (held, held)


def measured_as(config: Stack, input: Tensor) -> tuple[bool, str]:
    """Which measurements are of a dense input on a CPU: `Request.bfloat16` and `Request.mode`.

    Inference was measured in float32 and in bfloat16, of layers without a projection. Others are
    taken to be as in training: an LSTM that is not oneDNN's is much slower in PyTorch.
    """
    in_bfloat16 = _in_bfloat16(config, input)
    if torch.is_grad_enabled():
        return in_bfloat16, TRAINING
    measured = in_bfloat16 or (input.dtype is torch.float32 and not config.projected)
    return in_bfloat16, INFERENCE if measured else TRAINING


def _in_bfloat16(config: Stack, input: Tensor) -> bool:
    """Whether PyTorch would compute in bfloat16, and faster than in float32."""
    if input.dtype is torch.float32 and not torch._C._is_any_autocast_enabled():
        return False  # as most
    return not config.projected and of_pytorch(input) == torch.bfloat16 and multiplies_bfloat16()


def multiplies_bfloat16() -> bool:
    """Whether PyTorch computes in bfloat16 by instructions that the processor has for it.

    (On processors without, oneDNN converts to float32.)
    """
    return _has_instructions() and _has_onednn()


@cache
def _has_instructions() -> bool:
    cpu = torch.cpu
    native = cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported()
    return native and _has_bfloat16()


def _lowered(input: Tensor) -> torch.dtype:
    """What PyTorch multiplies in under autocast: its dtype; in cuDNN float16, whatever that is."""
    kind = input.device.type
    if kind == "cuda" and _has_cudnn() and input.numel():
        return torch.float16  # as aten/src/ATen/cudnn/AutocastRNN.cpp has it
    return torch.get_autocast_dtype(kind)


def _by_onednn(input: Tensor) -> bool:
    """Whether PyTorch gives an LSTM to oneDNN, which computes all of it in autocast's dtype."""
    if input.device.type != "cpu" or not _has_onednn() or not input.numel():
        return False
    if input.dtype == torch.bfloat16:
        return _has_bfloat16()
    return input.dtype == torch.float32


# What torch.compile cannot look into, and does not change in a process.
@torch.compiler.assume_constant_result
def _has_cudnn() -> bool:
    return torch.backends.cudnn.enabled and torch.backends.cudnn.is_available()


@torch.compiler.assume_constant_result
def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


@torch.compiler.assume_constant_result
def _has_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
