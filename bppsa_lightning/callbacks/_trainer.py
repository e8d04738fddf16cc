"""What callbacks ask of the Trainer that it has no public name for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lightning.pytorch as pl


def is_logging_step(trainer: pl.Trainer) -> bool:
    """Whether the Trainer logs at this step (its ``log_every_n_steps``)."""
    return trainer._logger_connector.should_update_logs


def is_accumulating(trainer: pl.Trainer) -> bool:
    """Whether the optimizer waits for further batches (``accumulate_grad_batches``)."""
    return trainer.fit_loop._should_accumulate()
