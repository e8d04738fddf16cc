"""What is built once on the CPU, and copied once to each GPU that it is used on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from bppsa_lightning._library import HAS_CUDA_KERNELS, NO_CUDA_KERNELS

P = ParamSpec("P")
R = TypeVar("R")
Built = TypeVar("Built", bound="OnDevices")
_CPU = torch.device("cpu")


def built_on_the_cpu(build: Callable[P, R]) -> Callable[P, R]:
    """A function that makes its tensors on the CPU, whatever torch's default device is."""

    @wraps(build)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with _CPU:
            return build(*args, **kwargs)

    return wrapped


class OnDevices:
    """A dataclass of tensors, or of others such as it.

    Copies are kept as long as the original, and let go with it; they are not pickled.
    """

    def on(self: Built, device: torch.device | str) -> Built:
        """The same on a device: itself where it was built, elsewhere a copy, the same every time.

        Args:
            device: a CPU or CUDA device; "cuda" is the current one.

        The first call for a GPU waits until the copy is there: it cannot be part of a CUDA graph.
        """
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device == self.__dict__.get("_device", _CPU):
            return self
        copies: dict[torch.device, Built] = self.__dict__.setdefault("_copies", {})
        if device not in copies:
            of: Any = self
            there = {f.name: _on(getattr(self, f.name), device) for f in fields(of)}
            copies[device] = replace(of, **there)
            copies[device].__dict__["_device"] = device
        return copies[device]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_copies"}


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return value.on(device) if isinstance(value, OnDevices) else value


def why_not(device: torch.device) -> str | None:
    """Why sparse Jacobians have no kernels on a device; None if they have."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return "wanted on the CPU or on a CUDA device"
    return None if HAS_CUDA_KERNELS else NO_CUDA_KERNELS
