"""What other strategies compute over their processes' parts of the data is whole here already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class WholeMetrics:
    """Lets a module's metrics (torchmetrics) be computed in one process alone.

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


class WholeValues:
    """A strategy whose processes have each value of all data, or are the only ones that have it."""

    broadcast: Callable[..., Any]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The tensor, as it is."""
        return tensor

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """The tensor, as on a single device."""
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Rank 0's decision: its metrics are those of the loss."""
        return bool(self.broadcast(decision))
