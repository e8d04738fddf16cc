"""A training in which nothing is accelerated: said once, with what to do, and only then."""

import warnings

import pytest
from support.helpers import Classifier, H, I, data, trainer
from support.strategy_models import OwnGRU
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.idle import why_idle


class NoChain(Classifier):
    def __init__(self):
        super().__init__()
        self.rnn = OwnGRU(I, H, batch_first=True)

    def on_after_backward(self):
        """No scan here."""


class Falls(Classifier):
    def on_after_backward(self):
        """No scan here."""


class Scans(NoChain):
    """A loop of the user's own, by bl.scan."""

    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(I, H)

    def forward(self, x):
        def step(h, x):
            h = self.cell(x, h)
            return h, h

        xs = x.transpose(0, 1)
        carry, _ = bl.scan(step, x.new_zeros(len(x), H), xs, algorithm="speculative")
        return self.head(carry)


@pytest.fixture
def slow_here(monkeypatch):
    monkeypatch.setattr(planner, "fallback_reason", lambda request: "PyTorch is faster")


def said(model, strategy="bppsa", fits=1, **settings):
    """What is said of nothing running, in some trainings of one model."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(fits):
            trainer(strategy, **{"max_steps": 16, "max_epochs": -1, **settings}).fit(model, data())
    return [text for w in found if "accelerated nothing" in (text := str(w.message))]


@pytest.mark.parametrize("strategy", ["bppsa", "auto"])
def test_a_model_without_chains_is_named_once(strategy):
    callbacks = [bl.Attach()] if strategy == "auto" else []
    (text,) = said(NoChain(), strategy, fits=2, callbacks=callbacks)
    assert text == (
        "BPPSA has accelerated nothing in 10 steps: rnn (overrides forward). Train with "
        'strategy="auto", which is as fast; a loop over time of your own may be faster by bl.scan, '
        "a network with few weights left by bl.SparseJacobianPruning. "
        "See docs/troubleshooting.md#nothing"
    )


def test_a_strategy_and_a_callback_say_it_once():
    assert len(said(NoChain(), callbacks=[bl.Attach()])) == 1


def test_a_model_that_pytorch_computes_faster_is_named(slow_here):
    (text,) = said(Falls())
    assert "10 steps: rnn (PyTorch is faster). That costs nothing" in text


def test_nothing_is_said_where_something_runs():
    assert said(Classifier()) == []


def test_nothing_is_said_before_ten_steps_or_where_pruning_is_to_come():
    assert said(NoChain(), max_steps=9) == []
    pruning = bl.SparseJacobianPruning(apply_pruning=False, parameter_names=["weight"])
    assert said(NoChain(), callbacks=[pruning]) == []


def test_a_scan_of_the_users_is_something():
    assert said(Scans()) == []


def test_layers_that_were_not_called_may_yet_be():
    model = Classifier()
    bl.attach(model)
    assert why_idle(model) is None


def test_few_of_many_layers_are_listed():
    model = nn.ModuleList([OwnGRU(I, H) for _ in range(5)])
    assert "2 (overrides forward), 2 more. Train with" in why_idle(model)
    assert why_idle(nn.Linear(2, 2)).startswith("it has no layer that is supported. Train with")


def test_of_a_model_whose_layers_accelerate_themselves():
    model = nn.Sequential(bl.nn.GRU(3, 4), nn.Linear(4, 1))
    assert why_idle(model) is None and "1 GRU" in bl.explain(model)
