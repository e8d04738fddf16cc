"""Moments of a training and the seconds between them, on the host or on a CUDA device."""

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Takes moments, and tells the seconds between two of them."""

    def now(self) -> Any:
        """This moment."""

    def passed(self, moment: Any) -> bool:
        """Whether `between` with this as the later moment would answer at once."""

    def between(self, earlier: Any, later: Any) -> float:
        """Seconds."""


class HostClock:
    """The host's own, by `time.perf_counter`."""

    def now(self) -> float:
        return time.perf_counter()

    def passed(self, moment: float) -> bool:
        return True

    def between(self, earlier: float, later: float) -> float:
        return later - earlier


class CudaClock:
    """A moment is when the device's current stream has done all that was launched before it.

    Taking one records an event and waits for nothing. Telling seconds waits for the later moment.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def passed(self, moment: torch.cuda.Event) -> bool:
        return bool(moment.query())

    def between(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        later.synchronize()
        return earlier.elapsed_time(later) / 1e3


def clock_of(device: torch.device) -> Clock:
    """The clock that sees a device's work: its own on CUDA, otherwise the host's."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
