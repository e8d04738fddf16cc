"""The Lightning strategies: ``Trainer(strategy="bppsa")``, and "bppsa_ddp" for several devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import (
    DDPStrategy,
    SingleDeviceStrategy,
    Strategy,
    StrategyRegistry,
)
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from bppsa_lightning import ops, planner, pruned
from bppsa_lightning._replacement import Chain, LeftAlone
from bppsa_lightning.attach import attach, attached, check_algorithm, explain, left_alone


class _Scanning(Strategy):
    """What is the same on one device and on several: chains in scan mode for the time of ``fit``.

    The user's ``training_step`` and every other part of the loop run unchanged; gradients arrive
    through autograd's own accumulation.
    """

    algorithm: str | Mapping[str, str]
    chains: list[Chain]
    scans: list[tuple[str, tuple[int, int, int], planner.Plan]]
    explanation: str
    _own: list[Chain | pruned.StandIn]

    def _scan_by(self, algorithm: str | Mapping[str, str]) -> None:
        check_algorithm(algorithm)
        self.algorithm = algorithm
        self.chains, self._own, self.scans = [], [], []
        self.explanation = ""

    def _attach(self) -> None:
        model = self.lightning_module
        assert model is not None
        users_layers = {id(child) for child in model.modules() if pruned.stand_in_of(child)}
        already = [(chain, chain.algorithm) for chain in attached(model)]
        self.chains = attach(model, self.algorithm)
        for chain, algorithm in already:  # the user's own choice stands
            chain.algorithm = algorithm
        users = {id(chain) for chain, _ in already}
        self._own = [chain for chain in self.chains if id(chain) not in users]
        for child in model.modules():
            stand_in = pruned.stand_in_of(child)
            if stand_in is not None and id(child) not in users_layers:
                self._own.append(stand_in)
        rank_zero_info(_summary(self.chains, left_alone(model)))

    @override
    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """The base method's frame, with a record of the scans that the gradient set off.

        Returns:
            The loss, detached.
        """
        self.pre_backward(closure_loss)
        model = self.lightning_module
        assert model is not None
        closure_loss = self.precision_plugin.pre_backward(closure_loss, model)
        with ops.scan_log() as log:
            self.precision_plugin.backward(closure_loss, model, optimizer, *args, **kwargs)
        self.scans = log.scans
        closure_loss = self.precision_plugin.post_backward(closure_loss, model)
        self.post_backward(closure_loss)
        return closure_loss

    @override
    def teardown(self) -> None:
        if self.lightning_module is not None and (self._own or self.chains):
            self.explanation = explain(self.lightning_module)
        for chain in self._own:
            chain.detach()
        self.chains, self._own = [], []
        super().teardown()


class BPPSAStrategy(_Scanning, SingleDeviceStrategy):
    """Trains on one device, the backward of every chain in the model by a scan over Jacobians.

    For the time of ``fit`` the model's chains are attached (see `attach`); the user's
    ``training_step`` and every other part of the loop run unchanged, gradients arrive through
    autograd's own accumulation. ``validate``, ``test`` and ``predict`` on their own do not touch
    the model. For several devices there is `BPPSADDPStrategy`.

    Args:
        algorithm: "auto" (the planner chooses), "linear", "chunked" or "blelloch"; or a dict of
            names in the model and one of these each, as for `attach`.
        device: the device, when no accelerator chooses it; by default the Trainer's.
        accelerator: as in Lightning's strategies.
        checkpoint_io: as in Lightning's strategies.
        precision_plugin: as in Lightning's strategies.

    Attributes:
        chains: the attached chains; empty outside ``fit``.
        scans: (cell, (T, B, H), plan) of each scan of the last backward.
        explanation: what `explain` says of the model, as it was at the end of the last ``fit``.

    Raises:
        ValueError: `algorithm` is unknown, or the Trainer was given more than one device or node.
    """

    strategy_name = "bppsa"
    num_nodes = 1  # the Trainer writes its own here

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
        self._scan_by(algorithm)
        self._device_given = device is not None
        self._devices: list[torch.device] = []

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        """None, so that each Trainer that is given this instance chooses its own devices.

        The Trainer writes its choice here. SingleDeviceStrategy has no such place, and would stay
        on the CPU whatever the accelerator.
        """
        return None

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        self._devices = devices

    @property
    @override
    def root_device(self) -> torch.device:
        if self._device_given or not self._devices:
            return self._root_device
        return self._devices[0]

    @override
    def setup_environment(self) -> None:
        for name, found in (("devices", len(self._devices)), ("num_nodes", self.num_nodes)):
            if found > 1:
                raise ValueError(
                    f"{name}: found {found}, wanted 1 for strategy='bppsa', which trains on one "
                    f"device; pass Trainer({name}=1), or strategy='bppsa_ddp', which trains on "
                    "several, a process each"
                )
        super().setup_environment()

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            self._attach()
        super().setup(trainer)


class BPPSADDPStrategy(_Scanning, DDPStrategy):
    """Lightning's `DDPStrategy` (a process for each device), each process' backward by scan.

    ``Trainer(strategy="bppsa_ddp", devices=…)``; "bppsa_ddp_spawn", "bppsa_ddp_fork" and
    "bppsa_ddp_notebook" start their processes as Lightning's "ddp_spawn", "ddp_fork" and
    "ddp_notebook" do. Gradients are averaged over the processes by DistributedDataParallel.

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
        self._scan_by(algorithm)

    @override
    def configure_ddp(self) -> None:
        # Here, not in `setup`: batch norms have been replaced by synchronised ones by now.
        self._attach()
        super().configure_ddp()

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: Any) -> None:
        for suffix, start_method in (
            ("", "popen"), ("_spawn", "spawn"), ("_fork", "fork"), ("_notebook", "fork"),
        ):  # fmt: skip
            strategy_registry.register(
                f"{cls.strategy_name}{suffix}",
                cls,
                description="Back-propagation by parallel scan, a process for each device, "
                f"`start_method` '{start_method}'",
                start_method=start_method,
            )


def _summary(chains: list[Chain], alone: list[LeftAlone]) -> str:
    scanned = ", ".join(f"{chain.name} ({chain.cell})" for chain in chains)
    left = "; ".join(f"{item.name}: {item.reason}" for item in alone)
    text = f"bppsa: scanning {scanned}" if chains else "bppsa: found no chain to scan"
    return f"{text}. Left to PyTorch: {left}" if left else text


StrategyRegistry.register(
    BPPSAStrategy.strategy_name, BPPSAStrategy, description="Back-propagation by parallel scan"
)
BPPSADDPStrategy.register_strategies(StrategyRegistry)
