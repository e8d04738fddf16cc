"""What a recurrent module may be made with and called with; else the errors of PyTorch's modules.

T steps, B samples, L layers times directions, P state that is shown, H hidden.
"""

import warnings
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import torch
from torch import Tensor

_RESETS = ("zeros", "initial")


def check_options(name: str, options: Mapping[str, Any], projects: bool) -> None:
    """Raises what PyTorch's constructors raise.

    Args:
        name: of the class. options: its arguments. projects: whether it takes proj_size.
    """
    dropout, layers = options["dropout"], options["num_layers"]
    if not isinstance(dropout, Number) or isinstance(dropout, bool) or not 0 <= dropout <= 1:  # type: ignore[operator]
        raise ValueError(
            "dropout should be a number in range [0, 1] representing the probability of an element "
            "being zeroed"
        )
    if dropout > 0 and layers == 1:  # type: ignore[operator]
        warnings.warn(
            "dropout option adds dropout after all but last recurrent layer, so non-zero dropout "
            f"expects num_layers greater than 1, but got dropout={dropout} and num_layers={layers}",
            stacklevel=4,
        )
    types = ("bias", bool), ("batch_first", bool), ("input_size", int), ("hidden_size", int)
    for argument, kind in types:
        if not isinstance(options[argument], kind):
            found = type(options[argument]).__name__
            raise TypeError(f"{argument} should be of type {kind.__name__}, got: {found}")
    for argument in ("input_size", "hidden_size", "num_layers"):
        if options[argument] <= 0:
            raise ValueError(f"{argument} must be greater than zero")
    P = options["proj_size"]
    if P and not projects:
        raise ValueError(f"proj_size argument is only supported for LSTM, not {name}")
    if P < 0:
        raise ValueError("proj_size should be a positive integer or zero to disable projections")
    if options["hidden_size"] <= P:
        raise ValueError("proj_size has to be smaller than hidden_size")


def check_own_options(reset_to: str, recurrent_dropout: float, zoneout: float) -> None:
    """Of the options that PyTorch's modules lack."""
    if reset_to not in _RESETS:
        raise ValueError(f"reset_to: found {reset_to!r}, wanted 'zeros' or 'initial'")
    for name, p in (("recurrent_dropout", recurrent_dropout), ("zoneout", zoneout)):
        if not isinstance(p, Number) or isinstance(p, bool) or not 0 <= p < 1:  # type: ignore[operator]
            raise ValueError(f"{name}: found {p!r}, wanted a number in [0, 1)")


def check_data(
    name: str, data: Any, weights: Sequence[Tensor], input_size: int, packed: bool
) -> None:
    """Of an input, or of the data of a `PackedSequence`, and of the weights that it meets."""
    weight = weights[0]
    if not isinstance(data, Tensor):
        raise TypeError(f"input: found {type(data).__name__}, wanted a tensor or a PackedSequence")
    if not packed and data.dim() not in (2, 3):
        raise ValueError(f"{name}: Expected input to be 2D or 3D, got {data.dim()}D instead")
    if packed and data.dim() != 2:
        raise RuntimeError(f"input must have 2 dimensions, got {data.dim()}")
    if data.dtype != weight.dtype and not torch._C._is_any_autocast_enabled():
        raise ValueError(
            f"RNN input dtype ({data.dtype}) does not match weight dtype ({weight.dtype}). Convert "
            f"input: input.to({weight.dtype}), or convert model: model.to({data.dtype})"
        )
    if not data.is_floating_point():
        raise TypeError(f"input: found {data.dtype}, wanted a floating-point dtype")
    # (Beside 16 bits others may be float32, as norms often are: all is computed in that.)
    alike = data.dtype.itemsize > 2 and not torch._C._is_any_autocast_enabled()
    for other in weights:
        if data.device != other.device:
            raise RuntimeError(
                "Input and parameter tensors are not at the same device, found input tensor at "
                f"{data.device} and parameter tensor at {other.device}"
            )
        if alike and other.dtype != weight.dtype:
            raise ValueError(
                f"RNN parameters are not of the same dtype, found {weight.dtype} and {other.dtype}"
            )
    if data.shape[-1] != input_size:
        raise RuntimeError(
            f"input.size(-1) must be equal to input_size. Expected {input_size}, got "
            f"{data.shape[-1]}"
        )


def checked_states(
    hx: Any, input: Tensor, batch: tuple[int, ...], layers: int, sizes: Sequence[int]
) -> tuple[Tensor, ...]:
    """(h0,), (h0, c0), or () for zeros.

    Args:
        batch: (B,), or () of an input that has no batch. layers: L. sizes: P, or P and H.
    """
    if hx is None:
        return ()
    states = (hx,) if len(sizes) == 1 else tuple(hx) if isinstance(hx, tuple | list) else ()
    if len(states) != len(sizes) or not all(isinstance(state, Tensor) for state in states):
        wanted = "a tensor" if len(sizes) == 1 else "a pair of tensors (h0, c0)"
        raise TypeError(f"hx: found {type(hx).__name__}, wanted {wanted}, or None")
    dim, kind = (3, "batched 3-D") if batch else (2, "unbatched 2-D")
    if any(state.dim() != dim for state in states):
        found = ", ".join(f"{state.dim()}-D" for state in states)
        names, found = ("hx", found) if len(states) == 1 else ("hx and cx", f"({found})")
        raise RuntimeError(
            f"For {kind} input, {names} should also be {dim}-D but got {found} "
            f"tensor{'s' * (len(states) > 1)}"
        )
    for k, (state, size) in enumerate(zip(states, sizes, strict=True)):
        wanted_shape = (layers, *(batch or (1,)), size)
        found_shape = list(state.shape if batch else state.unsqueeze(1).shape)
        if found_shape != list(wanted_shape):
            name = "hidden" if len(states) == 1 else f"hidden[{k}]"
            raise RuntimeError(f"Expected {name} size {wanted_shape}, got {found_shape}")
        if state.dtype != input.dtype and not torch._C._is_any_autocast_enabled():
            raise RuntimeError(
                "Input and hidden tensors are not the same dtype, found input tensor with "
                f"{input.dtype} and hidden tensor with {state.dtype}"
            )
        if state.device != input.device:
            raise RuntimeError(
                "Input and hidden tensors are not at the same device, found input tensor at "
                f"{input.device} and hidden tensor at {state.device}"
            )
    return states


def check_reset(reset: Any, shape: tuple[int, ...], dims: str) -> None:
    """Of the mask of resets."""
    if not isinstance(reset, Tensor) or reset.dtype != torch.bool:
        found = reset.dtype if isinstance(reset, Tensor) else type(reset).__name__
        raise TypeError(f"reset: found {found}, wanted a tensor of torch.bool")
    if tuple(reset.shape) != shape:
        raise ValueError(f"reset: found {tuple(reset.shape)}, wanted {dims} = {shape}")
