"""Chains in scan mode for the time of a run, under any strategy: a callback for any Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from bppsa_lightning._trees import stand_in
from bppsa_lightning.runs import AttachesInRuns, without_runs

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback
else:
    Callback = stand_in("pytorch.callbacks.Callback")


class Attach(AttachesInRuns, Callback):
    """Attaches the model's chains when a Trainer's run starts, and detaches them when it ends.

    For a strategy that is not Lightning's own single device or DDP, for which there are "bppsa" and
    "bppsa_ddp": FSDP, DeepSpeed, Ray Train's, a custom one. The model is attached in each process,
    after the strategy has wrapped it, for ``fit``, ``validate``, ``test`` and ``predict``. What was
    attached before stays as it is, in a run and after.

    Args:
        algorithm: "auto" (the planner chooses), "linear", "chunked", "blelloch" or
            "speculative"; or a dict of names in the model and one of these each, as for
            `bppsa_lightning.attach`.

    Attributes:
        chains: the attached chains; empty outside of a run.
        explanation: what `explain` says of the model, as it was at the end of the last ``fit``, or
            of the first evaluation of a model that was not fitted.

    Raises:
        TypeError, ValueError: `algorithm` is unknown.
    """

    def __init__(self, algorithm: str | Mapping[str, str] = "auto") -> None:
        self._init_attach(algorithm)

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._attach(trainer, pl_module)

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit":
            self._attach(trainer, pl_module)

    on_test_start = on_predict_start = on_validation_start

    def _attach(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Not in `setup`: here the strategy has wrapped, sharded and converted what it wants to.
        self._begin_run(pl_module, trainer, tell=not _by_strategy(trainer))

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if not _by_strategy(trainer):
            self._after_step(pl_module, trainer)

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._learned_states()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._load_learned(state_dict)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint.update(without_runs(checkpoint))

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._explain_run(pl_module)
        self._end_run()

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit":
            self._explain_run(pl_module)

    on_test_end = on_predict_end = on_validation_end

    @override
    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        self._end_run()

    @override
    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self._end_run()


def _by_strategy(trainer: pl.Trainer) -> bool:
    """Whether the strategy attaches chains, and says so, too."""
    return isinstance(trainer.strategy, AttachesInRuns)
