"""Chains attached for a Trainer's run, and what one run leaves to the next of the same model."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from bppsa_lightning import _memory
from bppsa_lightning._rank_zero import rank_zero_info
from bppsa_lightning._replacement import Replacement, replacements
from bppsa_lightning.attach import attach_chains, check_algorithm
from bppsa_lightning.chain import Chain, learn, learned
from bppsa_lightning.explain import explain, summary
from bppsa_lightning.idle import IdleWatch
from bppsa_lightning.steps import Scans

_NUMBERS = count(1)
_HYPERPARAMETERS = ("hyper_parameters", "datamodule_hyper_parameters")  # Lightning's names


class AttachesInRuns:
    """What the Trainer's strategies and `Attach` have in common.

    Attributes:
        algorithm: as given.
        chains: the attached chains; empty outside of a run.
        explanation: what `explain` said of the model at the end of the last run that had news.
    """

    def _init_attach(self, algorithm: str | Mapping[str, str]) -> None:
        check_algorithm(algorithm)
        self.algorithm = algorithm
        self.chains: list[Chain] = []
        self.explanation = ""
        self._runs = Runs()
        self._attached_here: list[Replacement] = []
        self._learned: dict[str, Any] = {}
        self._steps = Scans()
        self._idle = IdleWatch()
        self._keeps_memory = False

    def _begin_run(self, model: nn.Module, trainer: Any, tell: bool = True) -> None:
        if not self._keeps_memory and trainer.strategy.root_device.type == "cpu":
            self._keeps_memory = _memory.keep()
        before = self._runs.begin(model, trainer)
        self.chains, self._attached_here = attach_chains(
            model, self.algorithm, keep=True, before=before
        )
        self._runs.own(self._attached_here)
        self._divide()
        learn(self.chains, self._learned)
        self._steps.begin(model)
        self._idle = IdleWatch()
        if self._runs.news and tell:
            rank_zero_info(summary(model))

    def _divide(self) -> None:
        """For strategies that divide chains over ranks."""

    def _after_step(self, model: nn.Module, trainer: Any, scanned: bool = False) -> None:
        self._idle.step(model, trainer.callbacks, self._steps.any or scanned)

    def _learned_states(self) -> dict[str, Any]:
        """For a checkpoint: what windows have learned, where there are any."""
        return learned(self.chains) | self._steps.state_dict()

    def _load_learned(self, states: dict[str, Any]) -> None:
        """Of a checkpoint, before or in a run."""
        self._learned = states
        learn(self.chains, states)
        self._steps.load_state_dict(states)

    def _explain_run(self, model: nn.Module) -> None:
        if self._runs.news:
            self.explanation = explain(model)

    def _end_run(self) -> None:
        self._runs.end(self._attached_here)
        self.chains, self._attached_here, self._learned = [], [], {}
        self._steps.end()
        if self._keeps_memory:
            self._keeps_memory = False
            _memory.give_back()


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
        self._number = 0

    def begin(self, model: nn.Module, trainer: Any) -> list[Replacement]:
        """A run begins; returns what may be used again in it."""
        known = self._model is not None and self._model() is model
        self.news = trainer.state.fn == "fit" or not known
        before = self.replacements if known else []
        self.replacements = []
        self._model = weakref.ref(model, self._forget)
        return before

    def own(self, attached: Iterable[Replacement]) -> None:
        """What is there for this run alone, and so are copies that somebody makes of it."""
        self._number = next(_NUMBERS)
        for replacement in attached:
            replacement.of_run = self._number

    def end(self, replacements: Iterable[Replacement]) -> None:
        """It ends: detaches what was attached in it."""
        replacements = list(replacements)
        for replacement in replacements:
            replacement.detach()
        model = None if self._model is None else self._model()
        if model is not None:
            self.replacements += [r for r in replacements if r.lasts]
            for other in attached_by_runs(model):
                if other.of_run == self._number:  # a copy: the user's target network, say
                    other.detach()

    def _forget(self, model: weakref.ref[nn.Module]) -> None:
        if self._model is model:
            self.replacements = []

    def __getstate__(self) -> dict[str, Any]:
        return Runs().__dict__  # a copy in another process has seen none


def attached_by_runs(module: nn.Module) -> list[Replacement]:
    """The replacements in a module that are there for a run's time, or are copies of such."""
    return [r for r in replacements(module, Replacement).values() if r.of_run]


def without_runs(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint whose hyperparameters hold modules as they are without a run."""
    clean = {
        key: tree_map_only(nn.Module, _detached, checkpoint[key])
        for key in _HYPERPARAMETERS
        if key in checkpoint
    }
    return {**checkpoint, **clean}


def _detached(module: nn.Module) -> nn.Module:
    """The module, or a copy on the same tensors where a run has attached it.

    A copy, since a checkpoint may be written later, by another thread.
    """
    if not attached_by_runs(module):
        return module
    values = (value for m in module.modules() for value in vars(m).values())
    tensors = (*module.parameters(), *module.buffers(), *values)
    copied = copy.deepcopy(module, {id(t): t for t in tensors if isinstance(t, Tensor)})
    for replacement in attached_by_runs(copied):
        replacement.detach()
    return copied
