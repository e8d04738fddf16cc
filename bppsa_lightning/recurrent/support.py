"""Why a recurrent module, or one call of it, is PyTorch's to compute. In words for `explain`.

T steps, B batch, I input, P state, L layers times directions, N numbers of steps of all samples.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bppsa_lightning import _overridden, planner
from bppsa_lightning._context import OVERRIDES_FORWARD, recorded
from bppsa_lightning._library import missing_recurrent_kernels
from bppsa_lightning.recurrent.config import RecurrentConfig

_CAST = (torch.float32, torch.bfloat16, torch.float16)  # by autocast
_DTYPES = (*_CAST, torch.float64)
_MODULES = (nn.RNN, nn.GRU, nn.LSTM)
_ATTRIBUTES = (*nn.RNNBase.__constants__, "_flat_weights_names", "_flat_weights")


def is_candidate(module: nn.Module) -> bool:
    """Whether a module is recurrent."""
    return isinstance(module, (nn.RNNBase, nn.RNNCellBase))


def unsupported_module(module: nn.Module) -> str | None:
    """Why a module cannot be attached as a recurrent chain; None if it can."""
    kind = type(module).__name__
    if isinstance(module, nn.RNNCellBase):
        layer = next((m for m in _MODULES if kind.startswith(m.__name__)), nn.RNN)
        instead = f"use nn.{layer.__name__} over the whole sequence, or bl.scan"
        return f"{kind} runs one step at a time; {instead}"
    base = torch_class(module)
    if base is None:
        return f"{kind}: no cell for it"
    if "forward" in module.__dict__:
        return OVERRIDES_FORWARD
    if not all(hasattr(module, name) for name in _ATTRIBUTES):
        return f"{kind} lacks attributes that nn.{base.__name__} sets"
    return _overridden.unsupported(type(module), base)


def torch_class(module: nn.Module) -> type[nn.RNNBase] | None:
    """nn.RNN, nn.GRU or nn.LSTM, whichever a module is a kind of; None if it is none."""
    return next((known for known in _MODULES if isinstance(module, known)), None)


def unsupported_input(config: RecurrentConfig, module: nn.RNNBase, input: Any) -> str | None:
    """Why no call with an input, whatever it is, can be scanned; None if one may be."""
    packed = isinstance(input, PackedSequence)
    data = input.data if packed else input
    if not isinstance(data, Tensor):
        return f"input is a {type(data).__name__}, no tensor or PackedSequence"
    missing = missing_recurrent_kernels(data.device)
    if missing is not None:
        return missing
    if not (_packed_fits(config, input) if packed else _tensor_fits(config, module, input)):
        return _rejected(config)
    if data.device.type != "cuda":
        return None
    if packed and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        # Their places are copied from the host, from memory that a replay would not find again.
        return "a PackedSequence while a CUDA graph is captured"
    return None


def missing_kernels(data: Tensor) -> str | None:
    """Why there are no kernels for a tensor's device; None if there are."""
    return missing_recurrent_kernels(data.device)


def unsupported_when_compiled(
    config: RecurrentConfig, module: nn.RNNBase, input: Any, algorithm: str
) -> str | None:
    """As `unsupported_input`, while torch.compile traces: sizes may be symbols.

    Where it is PyTorch that is faster, the operator runs all the same: its graph is compiled once,
    for all sizes. On CUDA it does where its kernels are known to be right.
    """
    if isinstance(input, PackedSequence):
        return "a PackedSequence, whose lengths are values, inside torch.compile"
    reason = recorded() or unsupported_input(config, module, input)
    if reason is not None or input.device.type != "cuda":
        return reason
    return planner.fallback_reason_when_compiled(
        input.device, config.cell.name, input.dtype, config.input_size, config.hidden_size,
        config.output_size if config.projected else 0, config.layers, config.directions, False,
        algorithm,
    )  # fmt: skip


def unsupported_call(
    config: RecurrentConfig,
    data: Tensor,
    batch: tuple[int, ...],
    states: tuple[Any, ...],
    weights: Sequence[Any],
) -> str | None:
    """Why a call with a supported input cannot be scanned; None if it can.

    Args:
        config: of the module.
        data: of the input. batch: (B,), or () where it has no batch.
        states: (h0,), (h0, c0), or () for zeros; whatever they are.
        weights: in the order of ``config.names``; whatever they are.
    """
    if len(weights) != len(config.shapes):
        return "weights of unusual shapes"
    mixed = _mixed_tensors(data, (*weights, *states))
    if mixed is not None:
        return mixed
    L = config.layers * config.directions
    for state, size in zip(states, config.state_sizes, strict=False):
        if state.shape != (L, *batch, size):
            return _rejected(config)
    for weight, shape in zip(weights, config.shapes, strict=True):
        if weight.shape != shape:
            return "weights of unusual shapes"
    return None


def _rejected(config: RecurrentConfig) -> str:
    return f"shapes nn.{config.cell.kind} rejects; PyTorch raises the error"


def _mixed_tensors(data: Tensor, others: Sequence[Any]) -> str | None:
    device, dtype = data.device, data.dtype
    mixed = False
    for tensor in others:
        if not isinstance(tensor, Tensor) or tensor.device != device:
            return "input, state and weights are on different devices, or no tensors"
        mixed = mixed or tensor.dtype is not dtype
    if mixed:
        casts = torch.is_autocast_enabled(device.type)
        if not casts or any(t.dtype not in _CAST for t in (data, *others)):
            return "dtypes of input, state and weights differ"
    return None if dtype in _DTYPES else f"dtype {dtype}"


def _tensor_fits(config: RecurrentConfig, module: nn.RNNBase, input: Tensor) -> bool:
    shape = input.shape
    steps = 1 if len(shape) == 3 and module.batch_first else 0
    return len(shape) in (2, 3) and shape[-1] == config.input_size and shape[steps] > 0


def _packed_fits(config: RecurrentConfig, input: PackedSequence) -> bool:
    data, sizes = input.data, input.batch_sizes
    if data.dim() != 2 or data.shape[1] != config.input_size:
        return False
    if sizes.dim() != 1 or sizes.dtype != torch.int64 or not len(sizes):
        return False
    counts = sizes.tolist()
    return counts[-1] > 0 and sum(counts) == len(data) and counts == sorted(counts, reverse=True)
