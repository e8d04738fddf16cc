"""Metrics of torchmetrics, which add up what all processes have seen when they are computed."""

from __future__ import annotations

from typing import Any

from torch import nn


class WholeMetrics:
    """Lets a module's metrics be computed in one process alone.

    In a pipeline a process has seen all of the data (validation), or is the only one that has seen
    any (training, rank 0): there is nothing to add up, and the others would not answer.

    Args:
        module: the user's.
    """

    def __init__(self, module: nn.Module) -> None:
        self._metrics: list[tuple[Any, bool]] = [
            (part, part.sync_on_compute)  # type: ignore[misc]
            for part in module.modules()
            if hasattr(part, "sync_on_compute")
        ]
        for metric, _ in self._metrics:
            metric.sync_on_compute = False

    def restore(self) -> None:
        """The metrics as they were."""
        for metric, synced in self._metrics:
            metric.sync_on_compute = synced
