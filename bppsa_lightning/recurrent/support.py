"""Why a recurrent module, or one call of it, is PyTorch's to compute. In words for `explain`.

T steps, B batch, I input, P state, L layers times directions, N numbers of steps of all samples.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bppsa_lightning._context import OVERRIDES_FORWARD, overrides_forward, unsupported_transform
from bppsa_lightning._library import missing_recurrent_kernels
from bppsa_lightning.planner.cost_cuda import MOST_RESIDENT
from bppsa_lightning.recurrent.config import RecurrentConfig

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_MODULES = (nn.RNN, nn.GRU, nn.LSTM)


def is_candidate(module: nn.Module) -> bool:
    """Whether a module is recurrent."""
    return isinstance(module, (nn.RNNBase, nn.RNNCellBase))


def unsupported_module(module: nn.Module) -> str | None:
    """Why a module cannot be attached as a recurrent chain; None if it can."""
    kind = type(module).__name__
    if isinstance(module, nn.RNNCellBase):
        layer = next((m for m in _MODULES if kind.startswith(m.__name__)), nn.RNN)
        return f"{kind} runs one step at a time; use nn.{layer.__name__} over the whole sequence"
    for known in _MODULES:
        if isinstance(module, known):
            return OVERRIDES_FORWARD if overrides_forward(module, known) else None
    return f"{kind}: no cell for it"


def unsupported_call(
    config: RecurrentConfig,
    module: nn.RNNBase,
    input: Any,
    states: tuple[Any, ...],
    weights: Sequence[Any],
) -> str | None:
    """Why one call cannot be scanned; None if it can.

    Args:
        config: of the module.
        module: asked for what may change between calls.
        input: of its forward, whatever it is.
        states: (h0,), (h0, c0), or () for zeros; whatever they are.
        weights: in the order of ``config.names``.
    """
    packed = isinstance(input, PackedSequence)
    data = input.data if packed else input
    if not isinstance(data, Tensor):
        return f"input is a {type(data).__name__}, no tensor or PackedSequence"
    device = data.device
    reason = (
        missing_recurrent_kernels(device)
        or _mixed_tensors(data, (*weights, *states))
        or _wrong_shapes(config, module, input, states, weights)
    )
    if reason is not None:
        return reason
    if torch.compiler.is_compiling():
        return _too_wide_compiled(config, device)
    if packed and device.type == "cuda" and _is_captured():
        # Their places are copied from the host, from memory that a replay would not find again.
        return "a PackedSequence while a CUDA graph is captured"
    return unsupported_transform()


def _too_wide_compiled(config: RecurrentConfig, device: torch.device) -> str | None:
    H = config.hidden_size
    if device.type != "cuda" or H <= MOST_RESIDENT:
        return None
    return f"under torch.compile at most {MOST_RESIDENT} hidden units on CUDA (found {H})"


def _mixed_tensors(data: Tensor, others: Sequence[Any]) -> str | None:
    device, dtype = data.device, data.dtype
    mixed = False
    for tensor in others:
        if not isinstance(tensor, Tensor) or tensor.device != device:
            return "input, state and weights are on different devices, or no tensors"
        mixed = mixed or tensor.dtype is not dtype
    if mixed and not _autocast_mixes(device, (data, *others)):
        return "dtypes of input, state and weights differ"
    return None if dtype in _DTYPES else f"dtype {dtype}"


def _wrong_shapes(
    config: RecurrentConfig,
    module: nn.RNNBase,
    input: Any,
    states: tuple[Tensor, ...],
    weights: Sequence[Tensor],
) -> str | None:
    batch = _batch(config, module, input)
    L = config.layers * config.directions
    if batch is None or any(
        state.shape != (L, *batch, size)
        for state, size in zip(states, config.state_sizes, strict=False)
    ):
        return f"shapes nn.{config.cell.kind} rejects; PyTorch raises the error"
    for weight, shape in zip(weights, config.shapes, strict=True):
        if weight.shape != shape:
            return "weights of unusual shapes"
    return None


def _batch(config: RecurrentConfig, module: nn.RNNBase, input: Any) -> tuple[int, ...] | None:
    """(B,), or () of an input without a batch; None of one that PyTorch rejects."""
    if isinstance(input, PackedSequence):
        return (int(input.batch_sizes[0]),) if _packed_fits(config, input) else None
    *sizes, features = input.shape or (0,)
    if len(sizes) == 2 and module.batch_first:
        sizes = sizes[::-1]
    fits = len(sizes) in (1, 2) and features == config.input_size and sizes[0] > 0
    return tuple(sizes[1:]) if fits else None


def _packed_fits(config: RecurrentConfig, input: PackedSequence) -> bool:
    data, sizes = input.data, input.batch_sizes
    if data.dim() != 2 or data.shape[1] != config.input_size:
        return False
    if sizes.dim() != 1 or sizes.dtype != torch.int64 or not len(sizes):
        return False
    counts = sizes.tolist()
    return counts[-1] > 0 and sum(counts) == len(data) and counts == sorted(counts, reverse=True)


def _is_captured() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _autocast_mixes(device: torch.device, tensors: Sequence[Tensor]) -> bool:
    return torch.is_autocast_enabled(device.type) and all(
        t.dtype in _DTYPES and t.dtype != torch.float64 for t in tensors
    )
