"""Why a recurrent module, or one call of it, is PyTorch's to compute. In words for `explain`.

T steps, B batch, I input, P state, L layers times directions, N numbers of steps of all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence

from bppsa_lightning import ops
from bppsa_lightning.planner import gpu
from bppsa_lightning.recurrent.config import Form

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_WIDE = gpu.MOST_RESIDENT
_MODULES = (nn.RNN, nn.GRU, nn.LSTM)


def of_module(module: nn.Module) -> str | None:
    """Why a recurrent module cannot be attached; None if it can."""
    if isinstance(module, nn.RNNCellBase):
        kind = type(module).__name__
        layer = next((m for m in _MODULES if kind.startswith(m.__name__)), nn.RNN)
        return (
            f"{kind} computes one step: the loop over time is in your code, where no scan can see "
            f"it; nn.{layer.__name__} over the whole sequence can be scanned"
        )
    for known in _MODULES:
        if isinstance(module, known):
            replaced = type(module).forward is not known.forward or "forward" in module.__dict__
            return "its forward has been replaced" if replaced else None
    return f"{type(module).__name__}: no cell for it"


def of_call(
    form: Form, module: nn.RNNBase, input: Any, states: tuple[Any, ...], weights: Sequence[Any]
) -> str | None:
    """Why one call cannot be scanned; None if it can.

    Args:
        form: of the module.
        module: asked for what may change between calls.
        input: of its forward, whatever it is.
        states: (h0,), (h0, c0), or () for zeros; whatever they are.
        weights: in the order of ``form.names``.
    """
    packed = isinstance(input, PackedSequence)
    data = input.data if packed else input
    if not isinstance(data, Tensor):
        return f"input is a {type(data).__name__}, no tensor or PackedSequence"
    device, dtype = data.device, data.dtype
    missing = ops.recurrent_kernels_missing(device)
    if missing:
        return missing
    if device.type == "cuda" and torch.compiler.is_compiling() and form.hidden > _WIDE:
        return f"compiled, where the planner sees no sizes: H={form.hidden} is beyond {_WIDE}"
    mixed = False
    for tensor in (*weights, *states):
        if not isinstance(tensor, Tensor) or tensor.device != device:
            return "input, state and weights are on different devices, or no tensors"
        mixed = mixed or tensor.dtype is not dtype
    if mixed and not _autocast_mixes(device, (data, *weights, *states)):
        return "dtypes of input, state and weights differ"
    if dtype not in _DTYPES:
        return f"dtype {dtype}"
    fits = _packed_fits(form, input) if packed else _tensor_fits(form, module, input)
    if not fits or not _states_fit(form, module, input, states):
        return f"shapes that nn.{form.kind} refuses"
    for weight, shape in zip(weights, form.shapes, strict=True):
        if weight.shape != shape:
            return "weights of unusual shapes"
    if torch.compiler.is_compiling():
        return None
    if packed and device.type == "cuda" and _is_captured():
        # Their places are copied from the host, from memory that a replay would not find again.
        return "a PackedSequence while a CUDA graph is captured"
    if torch._C._are_functorch_transforms_active():
        return "inside a torch.func transform"
    if forward_ad._current_level >= 0:
        return "inside forward-mode differentiation"
    return None


def _is_captured() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _autocast_mixes(device: torch.device, tensors: Sequence[Tensor]) -> bool:
    return torch.is_autocast_enabled(device.type) and all(
        t.dtype in _DTYPES and t.dtype != torch.float64 for t in tensors
    )


def _tensor_fits(form: Form, module: nn.RNNBase, input: Tensor) -> bool:
    shape = input.shape
    if len(shape) == 3:
        return shape[2] == form.input_size and shape[1 if module.batch_first else 0] > 0
    return len(shape) == 2 and shape[1] == form.input_size and shape[0] > 0


def _packed_fits(form: Form, input: PackedSequence) -> bool:
    data, sizes = input.data, input.batch_sizes
    if data.dim() != 2 or data.shape[1] != form.input_size:
        return False
    if sizes.dim() != 1 or sizes.dtype != torch.int64 or not len(sizes):
        return False
    counts = sizes.tolist()
    return counts[-1] > 0 and sum(counts) == len(data) and counts == sorted(counts, reverse=True)


def _states_fit(form: Form, module: nn.RNNBase, input: Any, states: tuple[Tensor, ...]) -> bool:
    if not states:
        return True
    L = form.layers * form.directions
    if isinstance(input, PackedSequence):
        batch: tuple[int, ...] = (int(input.batch_sizes[0]),)
    else:
        batch = (input.shape[0 if module.batch_first else 1],) if input.dim() == 3 else ()
    sizes = zip(states, form.state_sizes, strict=True)
    return all(state.shape == (L, *batch, size) for state, size in sizes)
