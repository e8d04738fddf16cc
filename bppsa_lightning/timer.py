"""Where a training step's time goes: a callback for any Trainer."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from typing_extensions import override


class StepTimer(Callback):
    """Measures forward, backward and the whole of every training step, in seconds.

    Forward runs from the start of the batch to the start of backward (so it includes the loss),
    the whole from the start of one batch to its end (optimizer included, data loading not). With
    several backwards in a step (manual optimisation), forward ends at the first and backward is
    their sum. On CUDA the device is synchronised at each boundary, so that the figures are
    the device's.

    Args:
        log: log "seconds/forward", "seconds/backward", "seconds/step" and "seconds/elapsed" (wall
            clock since training began, everything included) at every logging step of the Trainer.

    Attributes:
        forward: seconds of each step so far. backward, step: likewise.
    """

    def __init__(self, log: bool = True) -> None:
        self._logs = log  # `self.log` is where the Trainer puts the model's own
        self.forward: list[float] = []
        self.backward: list[float] = []
        self.step: list[float] = []
        self._train_start = 0.0
        self._start = 0.0
        self._backward_start: float | None = None
        self._forward_end: float | None = None
        self._backward_sum = 0.0

    def medians(self) -> dict[str, float]:
        """Median seconds of "forward", "backward" and "step"; empty before the first step."""
        parts = {"forward": self.forward, "backward": self.backward, "step": self.step}
        return {name: median(values) for name, values in parts.items() if values}

    @override
    def on_train_start(self, trainer: pl.Trainer, *args: Any) -> None:
        self._train_start = _now(trainer)

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        self._start = _now(trainer)
        self._forward_end = None
        self._backward_sum = 0.0

    @override
    def on_before_backward(self, trainer: pl.Trainer, *args: Any) -> None:
        self._backward_start = _now(trainer)
        if self._forward_end is None:
            self._forward_end = self._backward_start

    @override
    def on_after_backward(self, trainer: pl.Trainer, *args: Any) -> None:
        if self._backward_start is not None:
            self._backward_sum += _now(trainer) - self._backward_start

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        end = _now(trainer)
        forward_end = end if self._forward_end is None else self._forward_end
        self.forward.append(forward_end - self._start)
        self.backward.append(self._backward_sum)
        self.step.append(end - self._start)
        if self._logs:
            pl_module.log_dict(
                {
                    "seconds/forward": self.forward[-1],
                    "seconds/backward": self.backward[-1],
                    "seconds/step": self.step[-1],
                    "seconds/elapsed": end - self._train_start,
                }
            )


def _now(trainer: pl.Trainer) -> float:
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.synchronize(trainer.strategy.root_device)
    return time.perf_counter()
