"""Fabric's strategies: ``Fabric(strategy="bppsa")``, on one device or on several.

They attach the chains of every module that ``fabric.setup`` is given; the loop is the user's own.
The names are those of the Trainer's strategies, as in Lightning:
``Fabric(strategy=bppsa_lightning.fabric.BPPSAStrategy("linear"))``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from typing_extensions import override

from bppsa_lightning._one_or_several import OneOrSeveral
from bppsa_lightning._rank_zero import rank_zero_info
from bppsa_lightning._trees import Settles, stand_in
from bppsa_lightning.attach import attach_chains, check_algorithm
from bppsa_lightning.explain import summary

if TYPE_CHECKING:
    from lightning.fabric.accelerators import Accelerator
    from lightning.fabric.plugins import CheckpointIO, Precision
    from lightning.fabric.strategies import DDPStrategy, SingleDeviceStrategy
    from lightning.fabric.strategies.strategy import Strategy
else:
    Strategy = stand_in("fabric.strategies.strategy.Strategy")
    SingleDeviceStrategy = stand_in("fabric.strategies.SingleDeviceStrategy")
    DDPStrategy = stand_in("fabric.strategies.DDPStrategy")


class _AttachInSetup(Settles, Strategy):
    """What is the same on one device and on several: ``setup`` attaches a module's chains.

    They stay attached, as Fabric knows no end of a training; `detach` takes them out.
    """

    def _init_attach(self, algorithm: str | Mapping[str, str]) -> None:
        check_algorithm(algorithm)
        self.algorithm = algorithm

    @override
    def setup_module(self, module: nn.Module) -> Any:
        attach_chains(module, self.algorithm, keep=True)
        rank_zero_info(summary(module))
        return super().setup_module(module)


class BPPSAStrategy(_AttachInSetup, OneOrSeveral, SingleDeviceStrategy):
    """Runs on one device; the backward of every chain is a scan over Jacobians.

    Given several devices or nodes by Fabric it becomes a `BPPSADDPStrategy`.

    Args:
        algorithm: "auto" (the planner chooses), "linear", "chunked" or "blelloch"; or a dict of
            names in the module and one of these each, as for `bppsa_lightning.attach`.
        device: the device, when no accelerator chooses it; by default Fabric's.
        accelerator, checkpoint_io, precision: as in Fabric's strategies.

    Raises:
        TypeError, ValueError: `algorithm` is unknown; or Fabric was given several devices, and
            this is a subclass, or has a `device` of the user's choice.
    """

    def __init__(
        self,
        algorithm: str | Mapping[str, str] = "auto",
        device: torch.device | str | int | None = None,
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
    ) -> None:
        super().__init__("cpu" if device is None else device, accelerator, checkpoint_io, precision)
        self._init_attach(algorithm)
        self._init_choices(device)


class BPPSADDPStrategy(_AttachInSetup, DDPStrategy):
    """Fabric's `DDPStrategy` (a process for each device), each process' backward by scan.

    Args:
        algorithm: as for `BPPSAStrategy`.
        kwargs: DDPStrategy's and DistributedDataParallel's.

    Raises:
        TypeError, ValueError: `algorithm` is unknown.
    """

    def __init__(self, algorithm: str | Mapping[str, str] = "auto", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._init_attach(algorithm)


BPPSAStrategy.for_several = BPPSADDPStrategy
