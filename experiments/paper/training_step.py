"""One training step of a classifier, timed in its parts: what the sweeps and breakdowns repeat."""

import lightning.pytorch as pl
import torch
from torch.nn import functional as F

from experiments.benchmarks import timing

PARTS = ("forward", "backward", "optimizer")


def training_step(model: pl.LightningModule, x: torch.Tensor, y: torch.Tensor) -> timing.Step:
    """A step on one batch: zero_grad and forward with the loss, backward, optimizer; and "step"."""
    optimizer = model.configure_optimizers()
    loss = torch.zeros(())

    def forward() -> None:
        nonlocal loss
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)

    def step() -> timing.Seconds:
        parts = timing.timed(
            x.device, forward=forward, backward=lambda: loss.backward(), optimizer=optimizer.step
        )
        return {**parts, "step": sum(parts.values())}

    return step
