"""What one run of a Trainer (``fit``, ``validate``, …) leaves to the next one of the same model."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn

from bppsa_lightning._replacement import Replacement


class Runs:
    """The runs of one strategy, or callback.

    There may be an evaluation for each batch, which should not take much longer than its batch
    does. So a model is told of once, and what it was given in place of forwards is used again: code
    that torch.compile made holds for these objects alone.

    Attributes:
        news: whether what is accelerated in the present run, and how, is to be told: in each
            ``fit``, and in an evaluation whose model was not seen in the run before.
        replacements: of the last run, detached. They go with their model.
    """

    def __init__(self) -> None:
        self.news = False
        self.replacements: list[Replacement] = []
        self._model: weakref.ref[nn.Module] | None = None

    def begin(self, model: nn.Module, trainer: Any) -> list[Replacement]:
        """A run begins; returns what may be used again in it."""
        known = self._model is not None and self._model() is model
        self.news = trainer.state.fn == "fit" or not known
        before = self.replacements if known else []
        self.replacements = []
        self._model = weakref.ref(model, self._forget)
        return before

    def end(self, replacements: Iterable[Replacement]) -> None:
        """It ends: detaches what was attached in it."""
        replacements = list(replacements)
        for replacement in replacements:
            replacement.detach()
        if self._model is not None and self._model() is not None:
            self.replacements += [r for r in replacements if r.lasts]

    def _forget(self, model: weakref.ref[nn.Module]) -> None:
        if self._model is model:
            self.replacements = []

    def __getstate__(self) -> dict[str, Any]:
        return Runs().__dict__  # a copy in another process has seen none
