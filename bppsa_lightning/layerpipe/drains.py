"""When a pipeline drains: at the end of an epoch and of the training, and before a validation.

Before a checkpoint it does so in `LayerPipeStrategy.lightning_module_state_dict`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bppsa_lightning._trees import stand_in

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback
else:
    Callback = stand_in("pytorch.Callback")


class Drains(Callback):
    """The first callback of a Trainer, so that all others meet whole weights.

    Also brings the metrics of the training to all processes: they are logged where the loss is
    known, and what stops a training or keeps a checkpoint reads them everywhere.

    Args:
        strategy: a LayerPipeStrategy.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Before a checkpoint that the count of steps brings about; and before a learning rate."""
        due = any(
            _is_due(callback, trainer.global_step) for callback in trainer.checkpoint_callbacks
        )
        if due:
            self._strategy.share()
        if due or any(map(_reads_steps, trainer.lr_scheduler_configs)):
            self._share_metrics(trainer)

    def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self._strategy.share()

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._strategy.share()
        self._share_metrics(trainer)

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._strategy.finish()

    def _share_metrics(self, trainer: pl.Trainer) -> None:
        """Rank 0's metrics of the training, for every process."""
        found = {name: value.cpu() for name, value in trainer.callback_metrics.items()}
        found = self._strategy.broadcast(found)
        if not trainer.is_global_zero:
            trainer._logger_connector._callback_metrics.update(found)


def _is_due(callback: Any, step: int) -> bool:
    every = getattr(callback, "_every_n_train_steps", 0)
    return bool(every) and step % every == 0


def _reads_steps(config: Any) -> bool:
    """Whether a scheduler (ReduceLROnPlateau) reads a metric within an epoch."""
    return bool(config.reduce_on_plateau) and config.interval == "step"
