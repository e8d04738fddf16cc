"""Whether a run of a Trainer is news: what is accelerated in it, and how, is told then."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn


class Told:
    """Of the runs of one strategy, or callback.

    Each ``fit`` is news. An evaluation is if its model was not seen in the run before: there may be
    one for each batch, which should not take much longer than its batch does.

    Attributes:
        news: whether the present run is.
    """

    def __init__(self) -> None:
        self.news = False
        self._model: weakref.ref[nn.Module] | None = None

    def is_news(self, model: nn.Module, trainer: Any) -> bool:
        """Whether a run that begins is."""
        known = self._model is not None and self._model() is model
        self.news = trainer.state.fn == "fit" or not known
        self._model = weakref.ref(model)
        return self.news

    def __getstate__(self) -> dict[str, Any]:
        return {"news": self.news, "_model": None}  # a copy in another process has seen none
