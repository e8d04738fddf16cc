"""What every function on Jacobians asks of its tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64)


def check_values(name: str, tensor: Any) -> Tensor:
    """A detached, contiguous CPU tensor of float32 or float64.

    Raises:
        TypeError: another type, layout or dtype.
        ValueError: on another device.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: found {type(tensor).__name__}, wanted a torch.Tensor")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: found layout {tensor.layout}, wanted a dense tensor")
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name}: found dtype {tensor.dtype}, wanted float32 or float64")
    if tensor.device.type != "cpu":
        raise ValueError(f"{name}: found on {tensor.device}, wanted on the CPU")
    return tensor.detach().contiguous()


def check_dtype(dtype: Any) -> torch.dtype:
    """`dtype`, or torch's default for None; TypeError unless it is float32 or float64."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in DTYPES:
        raise TypeError(f"dtype: found {dtype}, wanted torch.float32 or torch.float64")
    return dtype
