"""Moments of a training and the seconds between them, on the host or on a CUDA device."""

import time
from typing import Any

import torch


class Clock:
    """Takes moments, and tells the seconds between two of them: the host's, by `perf_counter`."""

    def now(self) -> Any:
        """This moment."""
        return time.perf_counter()

    def passed(self, moment: Any) -> bool:
        """Whether `between` with this as the later moment would answer at once."""
        return True

    def between(self, earlier: Any, later: Any) -> float:
        """Seconds."""
        return float(later - earlier)


class CudaClock(Clock):
    """A moment is when the device's current stream has done all that was launched before it.

    Taking one records an event and waits for nothing. Telling seconds waits for the later moment.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def now(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def passed(self, moment: Any) -> bool:
        return bool(moment.query())

    def between(self, earlier: Any, later: Any) -> float:
        later.synchronize()
        return float(earlier.elapsed_time(later)) / 1e3


def clock_of(device: torch.device) -> Clock:
    """The clock that sees a device's work: its own on CUDA, otherwise the host's."""
    return CudaClock(device) if device.type == "cuda" else Clock()
