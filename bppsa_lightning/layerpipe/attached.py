"""What a pipeline changes in a Trainer and its module for the time of ``fit``."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from bppsa_lightning._same_batches import LoaderRandomness
from bppsa_lightning.layerpipe.drains import Drains, SharesLogged

_BEFORE_TRANSFER = "_on_before_batch_transfer"


class BeforeTransfer:
    """A module's `on_before_batch_transfer`, which draws the same in every process.

    A Trainer calls it outside of what a strategy is asked for. A copy of the module has one of its
    own.
    """

    def __init__(self, module: Any, randomness: LoaderRandomness) -> None:
        self._module, self._randomness = module, randomness

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._randomness.used():
            return getattr(type(self._module), _BEFORE_TRANSFER)(self._module, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> BeforeTransfer:
        return BeforeTransfer(copy.deepcopy(self._module, memo), self._randomness)


def attach(trainer: Any, strategy: Any, randomness: LoaderRandomness | None) -> None:
    """Gives a Trainer the callbacks of a LayerPipeStrategy, and lets no process wait for others.

    Args:
        randomness: what all processes draw batches with; None of one alone.
    """
    module = strategy.lightning_module
    if randomness is not None:
        vars(module)[_BEFORE_TRANSFER] = BeforeTransfer(module, randomness)
    trainer.callbacks[:] = [Drains(strategy), *trainer.callbacks, SharesLogged()]
    epoch_loop = trainer.fit_loop.epoch_loop
    if hasattr(epoch_loop, "_broadcast_sigterm_tensor"):
        # Before every batch it would make all processes wait for the last stage.
        epoch_loop._broadcast_sigterm_tensor = partial(_stop_at_sigterm, trainer, strategy)


def detach(trainer: Any) -> None:
    """Leaves a Trainer, and its module, as they were."""
    vars(trainer.lightning_module).pop(_BEFORE_TRANSFER, None)
    ours = (Drains, SharesLogged)
    trainer.callbacks[:] = [c for c in trainer.callbacks if not isinstance(c, ours)]
    vars(trainer.fit_loop.epoch_loop).pop("_broadcast_sigterm_tensor", None)


def _stop_at_sigterm(trainer: Any, strategy: Any) -> None:
    if trainer.received_sigterm:
        [tree, *_] = vars(type(strategy))["_trees"]
        raise tree.find("pytorch.utilities.exceptions.SIGTERMException")
