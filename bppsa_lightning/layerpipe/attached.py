"""What a pipeline changes in a Trainer for the time of ``fit``."""

from __future__ import annotations

from functools import partial
from typing import Any

from bppsa_lightning.layerpipe.drains import Drains, SharesLogged


def attach(trainer: Any, strategy: Any) -> None:
    """Gives a Trainer the callbacks of a LayerPipeStrategy, and lets no process wait for others."""
    trainer.callbacks[:] = [Drains(strategy), *trainer.callbacks, SharesLogged()]
    epoch_loop = trainer.fit_loop.epoch_loop
    if hasattr(epoch_loop, "_broadcast_sigterm_tensor"):
        # Before every batch it would make all processes wait for the last stage.
        epoch_loop._broadcast_sigterm_tensor = partial(_stop_at_sigterm, trainer, strategy)


def detach(trainer: Any) -> None:
    """Leaves a Trainer as it was."""
    ours = (Drains, SharesLogged)
    trainer.callbacks[:] = [c for c in trainer.callbacks if not isinstance(c, ours)]
    vars(trainer.fit_loop.epoch_loop).pop("_broadcast_sigterm_tensor", None)


def _stop_at_sigterm(trainer: Any, strategy: Any) -> None:
    if trainer.received_sigterm:
        [tree, *_] = vars(type(strategy))["_trees"]
        raise tree.find("pytorch.utilities.exceptions.SIGTERMException")
