"""When a pipeline drains: at the end of an epoch and of the training, and before a validation.

Before a checkpoint it does so in `LayerPipeStrategy.lightning_module_state_dict`.

And when rank 0's metrics come to all processes: they are logged where the loss is known, and what
stops a training, keeps a checkpoint or lowers a learning rate reads them everywhere.
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
    """The first callback of a Trainer, so that all others meet whole weights, and rank 0's metrics.

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
        if due or any(map(reads_steps, trainer.lr_scheduler_configs)):
            share_metrics(trainer)

    def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self._strategy.share()

    def on_validation_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """A validation that draws finds something else in each process."""
        share_metrics(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._strategy.share()
        share_metrics(trainer)

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._strategy.finish()


class SharesLogged(Callback):
    """The last callback of a Trainer: after it the module's own hook logs, for those that monitor.

    (A Trainer calls these, ModelCheckpoint and EarlyStopping, after that hook.)
    """

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Makes the module's hook, which comes next, end with rank 0's metrics everywhere."""
        hook, is_own = module.on_train_epoch_end, "on_train_epoch_end" in vars(module)

        def hook_and_share() -> None:
            del module.on_train_epoch_end
            if is_own:
                module.on_train_epoch_end = hook  # type: ignore[method-assign]
            try:
                hook()
            except Exception as error:
                if trainer.is_global_zero:
                    raise
                raise RuntimeError(_ONLY_THERE) from error
            share_metrics(trainer)

        module.on_train_epoch_end = hook_and_share  # type: ignore[method-assign]


_ONLY_THERE = (
    "on_train_epoch_end failed in a process that does not run training_step to its end: what that "
    "keeps in the module (self.outputs, say) is on rank 0 alone, which holds the last stage. Guard "
    "what reads it: if self.trainer.is_global_zero"
)


def share_metrics(trainer: Any) -> None:
    """Rank 0's metrics, for every process, in place of what it has logged itself."""
    found = {name: value.cpu() for name, value in trainer.callback_metrics.items()}
    found = trainer.strategy.broadcast(found)
    if not trainer.is_global_zero:
        for own in (trainer._results or {}).values():
            own.has_reset = True  # else read again; what it has added up stays
        trainer._logger_connector._callback_metrics.update(found)


def _is_due(callback: Any, step: int) -> bool:
    every = getattr(callback, "_every_n_train_steps", 0)
    return bool(every) and step % every == 0


def reads_steps(config: Any) -> bool:
    """Whether a scheduler (ReduceLROnPlateau) reads a metric within an epoch."""
    return bool(config.reduce_on_plateau) and config.interval == "step"
