"""Chains in scan mode for the time of a run, under any strategy: a callback for any Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from bppsa_lightning._rank_zero import rank_zero_info
from bppsa_lightning._replacement import Replacement
from bppsa_lightning._runs import Runs
from bppsa_lightning._trees import stand_in
from bppsa_lightning.attach import attach_chains, check_algorithm
from bppsa_lightning.chain import Chain, learn, learned
from bppsa_lightning.explain import explain, summary
from bppsa_lightning.idle import IdleWatch
from bppsa_lightning.steps import Scans

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback
else:
    Callback = stand_in("pytorch.callbacks.Callback")


class Attach(Callback):
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
        check_algorithm(algorithm)
        self.algorithm = algorithm
        self.chains: list[Chain] = []
        self.explanation = ""
        self._runs = Runs()
        self._attached_here: list[Replacement] = []
        self._learned: dict[str, Any] = {}
        self._steps = Scans()
        self._idle = IdleWatch()

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
        before = self._runs.begin(pl_module, trainer)
        self.chains, self._attached_here = attach_chains(
            pl_module, self.algorithm, keep=True, before=before
        )
        learn(self.chains, self._learned)
        self._steps.begin(pl_module)
        self._idle = IdleWatch()
        by_strategy = getattr(trainer.strategy, "chains", None) is not None  # which has said it
        if self._runs.news and not by_strategy:
            rank_zero_info(summary(pl_module))

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if getattr(trainer.strategy, "chains", None) is None:
            callbacks = trainer.callbacks  # type: ignore[attr-defined]
            self._idle.step(pl_module, callbacks, self._steps.any)

    @override
    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: what windows have learned, where there are any."""
        return learned(self.chains) | self._steps.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._learned = state_dict
        learn(self.chains, state_dict)
        self._steps.load_state_dict(state_dict)

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.explanation = explain(pl_module)
        self._detach()

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit" and self._runs.news:
            self.explanation = explain(pl_module)

    on_test_end = on_predict_end = on_validation_end

    @override
    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        self._detach()

    @override
    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self._detach()

    def _detach(self) -> None:
        self._runs.end(self._attached_here)
        self.chains, self._attached_here = [], []
        self._steps.end()
