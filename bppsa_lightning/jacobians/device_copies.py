"""What is built once on the CPU, and copied once to each GPU that it is used on."""

import weakref
from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

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
        A graph that holds a later one does not hold the copy: keep the original for as long, and
        do not capture the functions that look their patterns up (``max_pool2d`` and others).
        """
        if device == self._built_on() == _CPU:  # at once: it is asked for by every call
            return self
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device == self._built_on():
            return _used(self, device)
        original = self.__dict__.get("_original", lambda: None)()
        if original is not None:
            return original.on(device)
        copies: dict[torch.device, Built] = self.__dict__.setdefault("_copies", {})
        if device not in copies:
            there = {
                name: part.to(device) if isinstance(part, Tensor) else part.on(device)
                for name, part in self._parts().items()
            }
            of: Any = self
            copies[device] = replace(of, **there)
            copies[device].__dict__["_original"] = weakref.ref(self)
        return _used(copies[device], device)

    def _built_on(self) -> torch.device:
        if "_device" not in self.__dict__:
            part = next(iter(self._parts().values()))
            self.__dict__["_device"] = part.device if isinstance(part, Tensor) else part._built_on()
        found: torch.device = self.__dict__["_device"]
        return found

    def _parts(self) -> dict[str, Any]:
        """The fields that are tensors, or others such as this."""
        of: Any = self
        named = {field.name: getattr(self, field.name) for field in fields(of)}
        return {name: v for name, v in named.items() if isinstance(v, Tensor | OnDevices)}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OWN}


_OWN = ("_copies", "_original", "_device", "_streams")


def _used(of: Built, device: torch.device) -> Built:
    """Has the allocator wait for the current stream before it gives `of`'s memory to others.

    By itself it does so for the stream that the copy was made on alone; this one may be another,
    and nobody else knows of the copy.
    """
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return of
    stream = torch.cuda.current_stream(device)
    streams: set[int] = of.__dict__.setdefault("_streams", set())
    if stream.cuda_stream not in streams:
        streams.add(stream.cuda_stream)
        for part in of._parts().values():
            if isinstance(part, Tensor):
                part.record_stream(stream)
            else:
                _used(part, device)
    return of
