"""A module's metrics (torchmetrics) where not every process has a part of the data of its own."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn


class WholeMetrics:
    """Lets a module's metrics be computed over the processes whose data make up the whole.

    By default that is this process alone, which has seen all of the data, or is the only one that
    has seen any: there is nothing to add up, and the others would not answer.

    Args:
        module: the user's.
        group: the processes that have a part of the data each. What a metric has been given for
            that by the user stays.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        # (Not `sync_on_compute`: a metric that was never called, but updated, would not look.)
        name = "distributed_available_fn" if group is None else "dist_sync_fn"
        value: Any = _nobody_else if group is None else _gather_over(group)
        self._before: list[tuple[Any, str, Any]] = []
        for part in module.modules():
            if not hasattr(part, "sync_on_compute"):
                continue
            own = getattr(part, "process_group", None) or getattr(part, "dist_sync_fn", None)
            if group is None or own is None:
                self._before.append((part, name, getattr(part, name, None)))
                setattr(part, name, value)

    def restore(self) -> None:
        """The metrics as they were."""
        for metric, name, value in self._before:
            setattr(metric, name, value)


def _nobody_else() -> bool:
    """Whether there are processes to ask."""
    return False


def _gather_over(processes: dist.ProcessGroup) -> Any:
    """torchmetrics' gather over a group: a function, since metrics with a group can't be copied."""
    from torchmetrics.utilities.distributed import gather_all_tensors

    def gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
        found: list[Tensor] = gather_all_tensors(tensor, processes)
        return found

    return gather
