"""Checks of arguments, in one wording: the argument, what was found, what was wanted."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import _library

FLOATS = (torch.float32, torch.float64)
ALL_FLOATS = (*FLOATS, torch.bfloat16, torch.float16)


def check_tensor(name: str, tensor: Any, dtypes: Sequence[torch.dtype] = FLOATS) -> None:
    """TypeError unless `tensor` is a dense torch.Tensor of one of the dtypes."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: found {type(tensor).__name__}, wanted a torch.Tensor")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: found layout {tensor.layout}, wanted a dense tensor")
    if tensor.dtype not in dtypes:
        *names, last = (str(dtype).removeprefix("torch.") for dtype in dtypes)
        wanted = f"{', '.join(names)} or {last}" if names else last
        raise TypeError(f"{name}: found dtype {tensor.dtype}, wanted {wanted}")


def check_like(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """TypeError unless `tensor` has the other's dtype; ValueError unless it is on its device."""
    theirs = f"{other_name}'" if other_name.endswith("s") else f"{other_name}'s"
    if tensor.dtype != other.dtype:
        raise TypeError(f"{name}: found dtype {tensor.dtype}, wanted {theirs} {other.dtype}")
    if tensor.device != other.device:
        raise ValueError(f"{name}: found on {tensor.device}, wanted on {theirs} {other.device}")


def check_shape(name: str, tensor: Tensor, *wanted: tuple[int, ...]) -> None:
    """ValueError unless `tensor` has one of the shapes."""
    if tuple(tensor.shape) not in wanted:
        shapes = " or ".join(map(str, wanted))
        raise ValueError(f"{name}: found shape {tuple(tensor.shape)}, wanted {shapes}")


def wrong_shape(name: str, tensor: Tensor, wanted: str) -> ValueError:
    """The error of a shape that is not as described."""
    return ValueError(f"{name}: found shape {tuple(tensor.shape)}, wanted {wanted}")


def check_scan(name: str, jacobians: Any, dims: str, grad: Any) -> None:
    """Raises unless a scan can be run over the Jacobians (T, B, H, …) and grad (T+1, B, H)."""
    check_tensor(name, jacobians, ALL_FLOATS)
    check_tensor("grad", grad, ALL_FLOATS)
    shape = tuple(jacobians.shape)
    if len(shape) != dims.count(",") + 1 or shape[2] < 1 or shape[-1] != shape[2]:
        raise wrong_shape(name, jacobians, f"{dims} with H >= 1")
    T, B, H = shape[:3]
    if tuple(grad.shape) != (T + 1, B, H):
        raise wrong_shape(
            "grad", grad, f"(T+1, B, H) = {(T + 1, B, H)} for {name} of shape {shape}"
        )
    check_like("grad", grad, name, jacobians)
    if jacobians.is_cuda and not _library.HAS_CUDA_KERNELS:
        raise RuntimeError(f"{name}: found on a CUDA device, but {_library.NO_CUDA_KERNELS}")


def check_on_cpu(name: str, tensor: Tensor) -> None:
    """RuntimeError unless the sparse layers have a kernel where `tensor` is."""
    if tensor.device.type not in ("cpu", "meta"):
        raise RuntimeError(
            f"{name}: found on {tensor.device}, where the sparse layers have no kernel"
        )


def check_values(name: str, tensor: Any) -> Tensor:
    """A detached, contiguous tensor of float32 or float64, on the CPU or a CUDA device.

    TypeError for another type, layout or dtype, ValueError on another device, RuntimeError on a
    CUDA device if the package was built without its CUDA kernels.
    """
    check_tensor(name, tensor)
    reason = _library.missing_jacobian_kernels(tensor.device)
    if reason is not None:
        error = RuntimeError if tensor.is_cuda else ValueError
        raise error(f"{name}: found on {tensor.device}; {reason}")
    contiguous: Tensor = tensor.detach().contiguous()
    return contiguous


def check_dtype(dtype: Any) -> torch.dtype:
    """`dtype`, or torch's default for None; TypeError unless it is float32 or float64."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in FLOATS:
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


def register_fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the fake kernel of an operator whose numbers are all on one device.

    PyTorch calls it also where a real tensor meets one on the meta device, and would take the
    memory that it returns, to which nobody has written, for the result.
    """

    def register(fake: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fake)
        def checked(*arguments: Any) -> Any:
            tensors = [t for t in arguments if isinstance(t, Tensor) and t.is_floating_point()]
            devices = dict.fromkeys(str(t.device) for t in tensors)
            if len(devices) > 1:
                raise RuntimeError(
                    f"bppsa::{name}: found tensors on {' and '.join(devices)}, wanted one device"
                )
            return fake(*arguments)

        torch.library.register_fake(f"bppsa::{name}", checked)
        return fake

    return register
