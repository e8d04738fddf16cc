"""What every function on Jacobians asks of its tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.jacobians.device_copies import why_not

DTYPES = (torch.float32, torch.float64)


def check_values(name: str, tensor: Any) -> Tensor:
    """A detached, contiguous tensor of float32 or float64, on the CPU or a CUDA device.

    Raises:
        TypeError: another type, layout or dtype.
        ValueError: on another device.
        RuntimeError: on a CUDA device, but the package was built without its CUDA kernels.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: found {type(tensor).__name__}, wanted a torch.Tensor")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: found layout {tensor.layout}, wanted a dense tensor")
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name}: found dtype {tensor.dtype}, wanted float32 or float64")
    reason = why_not(tensor.device)
    if reason is not None:
        error = RuntimeError if tensor.is_cuda else ValueError
        raise error(f"{name}: found on {tensor.device}; {reason}")
    return tensor.detach().contiguous()


def check_dtype(dtype: Any) -> torch.dtype:
    """`dtype`, or torch's default for None; TypeError unless it is float32 or float64."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in DTYPES:
        raise TypeError(f"dtype: found {dtype}, wanted torch.float32 or torch.float64")
    return dtype


def check_bool(name: str, tensor: Any) -> None:
    """TypeError unless `tensor` is a bool tensor on the CPU or a CUDA device."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: found {type(tensor).__name__}, wanted a bool tensor")
    if tensor.dtype != torch.bool or tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(
            f"{name}: found {tensor.dtype} on {tensor.device}, wanted a bool tensor on the CPU or "
            "on a CUDA device"
        )
