"""A training in which nothing is accelerated: noticed after some steps, and said once."""

from __future__ import annotations

from typing import Any

from torch import nn

from bppsa_lightning import pruned
from bppsa_lightning._advice import advise
from bppsa_lightning._replacement import Replacement
from bppsa_lightning.chain import named_chains
from bppsa_lightning.explain import layers_of_nn, not_accelerated

_STEPS = 10  # before anything is said: models may begin with a part of theirs
_SHOWN = 3


class IdleWatch:
    """Counts a training's steps, and looks once."""

    def __init__(self) -> None:
        self._steps = 0

    def step(self, module: nn.Module, callbacks: list[Any], scanned: bool = False) -> None:
        """A backward, or a batch, has ended.

        Args:
            callbacks: the Trainer's; one that prunes may change the answer.
            scanned: whether a scan ran in it.
        """
        if self._steps >= _STEPS:
            return
        self._steps = _STEPS if scanned else self._steps + 1
        if self._steps < _STEPS or scanned or any(map(_prunes, callbacks)):
            return
        why = why_idle(module)
        if why is not None:
            advise(module, "nothing", f"BPPSA has accelerated nothing in {_STEPS} steps: {why}")


def why_idle(module: nn.Module) -> str | None:
    """Why nothing in a module is accelerated, and what to do; None if something is, or may be."""
    attached: dict[str, Replacement] = {**named_chains(module), **pruned.sparse_layers(module)}
    if not attached and layers_of_nn(module):
        return None
    if not attached:
        reasons = {other.name: other.reason for other in not_accelerated(module)}
        return (
            f"{_listed(reasons) or 'it has no layer that is supported'}. "
            'Train with strategy="auto", which is as fast; a loop over time of your own may be '
            "faster by bl.scan, a network with few weights left by bl.SparseJacobianPruning."
        )
    if any(r.calls or not r.fallback_calls for r in attached.values()):
        return None  # compiled calls are counted nowhere
    reasons = {name: str(r.last_fallback) for name, r in attached.items()}
    return (
        f"{_listed(reasons)}. That costs nothing: PyTorch's own kernels run. "
        "bl.calibrate() measures this machine, where the reason is an estimate."
    )


def _listed(reasons: dict[str, str]) -> str:
    named = [f"{name or '(itself)'} ({why})" for name, why in reasons.items()]
    more = [f"{len(named) - _SHOWN} more"] if len(named) > _SHOWN else []
    return ", ".join(named[:_SHOWN] + more)


def _prunes(callback: Any) -> bool:
    return any(kind.__name__ == "ModelPruning" for kind in type(callback).__mro__)
