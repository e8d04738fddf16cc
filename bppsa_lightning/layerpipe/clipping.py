"""Clipping by the norm of the whole gradient, whose parts lie in several processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer


class NormOfAllStages:
    """Makes a Trainer's precision plugin clip by the norm over all stages.

    Args:
        plugin: the Trainer's; every process has to clip in the same step.
        device: of this process.
    """

    def __init__(self, plugin: Any, device: torch.device) -> None:
        self._plugin, self._device = plugin, device
        plugin.clip_grad_by_norm = self.clip_grad_by_norm

    def clip_grad_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        """As `torch.nn.utils.clip_grad_norm_`, for the gradient that all hold together."""
        parameters = [p for p in self._plugin.main_params(optimizer) if p.grad is not None]
        grads = [p.grad for p in parameters]
        norm = get_total_norm(grads) if grads else torch.zeros((), device=self._device)
        square = norm.to(self._device, torch.float64) ** 2
        dist.all_reduce(square)
        clip_grads_with_norm_(parameters, clip_val, square.sqrt())

    def restore(self) -> None:
        """The plugin as it was."""
        del self._plugin.clip_grad_by_norm
