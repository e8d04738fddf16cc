"""The Trainer's strategies: ``Trainer(strategy="bppsa")``, on one device or on several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from bppsa_lightning import ops, planner
from bppsa_lightning._one_or_several import OneOrSeveral
from bppsa_lightning._trees import Settles, stand_in
from bppsa_lightning.chain import LEARNED
from bppsa_lightning.runs import AttachesInRuns, without_runs

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.fabric.plugins import CheckpointIO
    from lightning.pytorch.plugins.precision import Precision
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
else:
    Strategy = stand_in("pytorch.strategies.Strategy")
    SingleDeviceStrategy = stand_in("pytorch.strategies.SingleDeviceStrategy")
    DDPStrategy = stand_in("pytorch.strategies.DDPStrategy")


class AttachesChains(Settles, AttachesInRuns, Strategy):
    """What is the same on one device and on several: chains attached for the time of a run."""

    def _init_attach(self, algorithm: str | Mapping[str, str]) -> None:
        super()._init_attach(algorithm)
        self.scans: list[tuple[str, tuple[int, int, int], planner.Plan]] = []

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        super().setup(trainer)
        if trainer.state.fn != "fit":
            self._attach()

    def _attach(self) -> None:
        """Called by subclasses in ``fit``, before the optimizers are set up."""
        model = self.lightning_module
        assert model is not None
        self._begin_run(model, model.trainer)

    @override
    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """As the base method, with a record of the scans that the gradient set off."""
        with ops.scan_log() as log:
            self.scans = log.scans
            loss = super().backward(closure_loss, optimizer, *args, **kwargs)
        model = self.lightning_module
        if model is not None:
            self._after_step(model, model.trainer, scanned=bool(log.scans))
        return loss

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """As the base method, with what windows have learned, where there are any."""
        states = self._learned_states()
        checkpoint = without_runs(checkpoint) | ({LEARNED: states} if states else {})
        super().save_checkpoint(checkpoint, *args, **kwargs)

    @override
    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(*args, **kwargs)
        self._load_learned(checkpoint.get(LEARNED, {}))
        return checkpoint

    @override
    def teardown(self) -> None:
        model = self.lightning_module
        try:
            if model is not None:
                self._explain_run(model)
        except Exception as error:  # an earlier one (of a device, say) is what the user must see
            self.explanation = f"explain failed: {error!r}"
        self._end_run()
        super().teardown()


class BPPSAStrategy(AttachesChains, OneOrSeveral, SingleDeviceStrategy):
    """Trains with the backward of every chain in the model by a scan over Jacobians.

    For the time of ``fit``, ``validate``, ``test`` or ``predict`` the model's chains are attached
    (see `attach`); the user's ``training_step`` and every other part of the loop run unchanged,
    gradients arrive through autograd's own accumulation. Evaluation runs the same forward kernels
    as training, so that its numbers are those of the validation in ``fit``.

    On a CPU the process keeps what steps free until the run ends, if the C library is glibc and its
    environment (``MALLOC_TRIM_THRESHOLD_``, …) says nothing else.

    Given several devices or nodes by the Trainer it becomes a `BPPSADDPStrategy`, as Lightning's
    own choice becomes "ddp" there.

    Args:
        algorithm: "auto" (the planner chooses), "linear", "chunked", "blelloch" or
            "speculative"; or a dict of names in the model and one of these each, as for `attach`.
        device: the device, when no accelerator chooses it; by default the Trainer's.
        accelerator: as in Lightning's strategies.
        checkpoint_io: as in Lightning's strategies.
        precision_plugin: as in Lightning's strategies.

    Attributes:
        chains: the attached chains; empty outside of a run.
        scans: (cell, (T, B, H), plan) of each scan of the last backward.
        explanation: what `explain` says of the model, as it was at the end of the last ``fit``, or
            of the first evaluation of a model that was not fitted.

    Raises:
        TypeError, ValueError: `algorithm` is unknown; or the Trainer was given several devices, and
            this is a subclass, or has a `device` of the user's choice.
    """

    strategy_name = "bppsa"

    def __init__(
        self,
        algorithm: str | Mapping[str, str] = "auto",
        device: torch.device | str | int | None = None,
        accelerator: pl.accelerators.Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
    ) -> None:
        super().__init__(
            "cpu" if device is None else device, accelerator, checkpoint_io, precision_plugin
        )
        self._init_attach(algorithm)
        self._init_choices(device)

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        if trainer.state.fn == "fit":
            self._attach()
        super().setup(trainer)


class BPPSADDPStrategy(AttachesChains, DDPStrategy):
    """Lightning's `DDPStrategy` (a process for each device), each process' backward by scan.

    ``Trainer(strategy="bppsa_ddp", devices=…)``; "bppsa_ddp_spawn", "bppsa_ddp_fork" and
    "bppsa_ddp_notebook" start their processes as Lightning's "ddp_spawn", "ddp_fork" and
    "ddp_notebook" do, and "…_find_unused_parameters_true" and "…_false" are there as theirs are.
    Gradients are averaged over the processes by DistributedDataParallel.

    Args:
        algorithm: as for `BPPSAStrategy`.
        kwargs: DDPStrategy's (start_method, process_group_backend, …) and
            DistributedDataParallel's (find_unused_parameters, …).

    Attributes:
        chains, scans, explanation: as of `BPPSAStrategy`, each process its own. Processes that are
            spawned or forked take theirs with them when they end: log what you want to keep
            (`ChainMonitor`).

    Raises:
        TypeError, ValueError: `algorithm` is unknown.
    """

    strategy_name = "bppsa_ddp"

    def __init__(self, algorithm: str | Mapping[str, str] = "auto", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._init_attach(algorithm)

    @override
    def configure_ddp(self) -> None:
        # Here, not in `setup`: batch norms have been replaced by synchronised ones by now.
        self._attach()
        super().configure_ddp()


BPPSAStrategy.for_several = BPPSADDPStrategy
