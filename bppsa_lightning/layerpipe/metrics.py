"""What other strategies compute over their processes' parts of the data is whole here already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bppsa_lightning._whole_metrics import WholeMetrics as WholeMetrics


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
