"""The strategy attaches a model's chains for a run, and no longer; what the user attached stays."""

import copy
import logging
import pickle
import signal
from contextlib import contextmanager

import pytest
import torch
from support.helpers import (
    Classifier,
    H,
    I,
    assert_identical,
    data,
    fit,
    is_attached,
    stock_training,
    trainer,
    weights,
)
from support.strategy_models import STOCK, OwnGRU, Stacked, assert_same_training, both
from torch import nn

import bppsa_lightning as bl


class Attachment(Classifier):
    """Notes in each kind of step whether the chain is attached; fails in one hook if told to."""

    error, where = None, None

    def __init__(self):
        super().__init__()
        self.attached = {}

    def note(self, where):
        self.attached.setdefault(where, set()).add(is_attached(self.rnn))
        if where == self.where:
            raise self.error("stop here")

    def training_step(self, batch, batch_idx):
        self.note("train")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.note("validate")
        self.log("loss", self.loss(batch))

    def test_step(self, batch, batch_idx):
        self.note("test")
        self.log("loss", self.loss(batch))

    def predict_step(self, batch, batch_idx):
        self.note("predict")
        return self(batch[0])

    def on_fit_start(self):
        self.note("on_fit_start")

    def on_before_optimizer_step(self, optimizer):
        self.note("on_before_optimizer_step")

    def on_train_end(self):
        self.note("on_train_end")

    def teardown(self, stage):
        self.note("teardown")

    def configure_optimizers(self):
        self.note("configure_optimizers")
        return super().configure_optimizers()


STAGES = ["validate", "test", "predict"]


@pytest.mark.parametrize("stage", STAGES)
def test_evaluation_alone(stage):
    found = []
    for strategy in (STOCK, "bppsa"):
        torch.manual_seed(0)
        model = Attachment()
        before = model.rnn.__dict__.copy()
        train = trainer(strategy, precision="64-true")
        found.append(getattr(train, stage)(model, data()))
        assert model.attached == {stage: {strategy == "bppsa"}, "teardown": {False}}
        assert model.rnn.__dict__.keys() == before.keys()
    assert train.strategy.chains == [] and "1 of 1 recurrent" in train.strategy.explanation
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("stage", STAGES)
def test_an_evaluation_that_fails_leaves_the_model_detached(stage):
    model = Attachment()
    model.where, model.error = stage, RuntimeError
    train = trainer("bppsa")
    with pytest.raises(RuntimeError, match="stop here"):
        getattr(train, stage)(model, data())
    assert model.attached[stage] == {True}
    assert not is_attached(model.rnn) and train.strategy.chains == []


def test_one_trainer_fits_evaluates_and_fits_again():
    model = Attachment()
    train = trainer("bppsa", max_epochs=1)
    for _ in range(2):
        train.fit(model, data())
        assert model.attached["train"] == {True}
        assert not is_attached(model.rnn) and train.strategy.chains == []
        train.test(model, data(), verbose=False)
        assert model.attached["test"] == {True} and not is_attached(model.rnn)
        train.fit_loop.max_epochs += 1
    assert len(model.losses) == 8


def test_validation_inside_fit():
    class Validated(Attachment):
        def on_validation_epoch_end(self):
            self.losses.append(float(self.trainer.callback_metrics["loss"]))

    found = []
    for strategy in (STOCK, "bppsa"):
        torch.manual_seed(0)
        model = Validated()
        trainer(strategy, max_epochs=2, precision="64-true").fit(model, data(), data())
        assert model.attached["validate"] == {strategy == "bppsa"}
        found.append(model)
    assert_same_training(*found)


@pytest.fixture
def interrupts():
    """Lightning leaves the interrupt signal switched off when it was interrupted itself."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize(
    "where",
    ["configure_optimizers", "on_fit_start", "validate", "train", "on_before_optimizer_step"]
    + ["on_train_end", "teardown"],
)
@pytest.mark.usefixtures("interrupts")
def test_the_model_is_detached_whatever_happens(where, error):
    model = Attachment()
    model.where, model.error = where, error
    train = trainer("bppsa")
    with pytest.raises(SystemExit if error is KeyboardInterrupt else error):
        train.fit(model, data(), data())
    assert model.attached[where] == {where != "teardown"}
    assert "forward" not in model.rnn.__dict__
    assert train.strategy.chains == []
    model.where = None
    trainer("bppsa").fit(model, data())
    assert model.attached["train"] == {True} and "forward" not in model.rnn.__dict__


def test_what_the_user_attached_stays_as_the_user_wants_it():
    model = Attachment()
    [chain] = bl.attach(model, "chunked")
    train = trainer(bl.BPPSAStrategy("blelloch"))
    train.fit(model, data())
    assert [plan.algorithm for _, _, plan in train.strategy.scans] == ["chunked"]
    assert model.rnn.forward is chain and chain.algorithm == "chunked" and chain.calls == 4
    train.test(model, data(), verbose=False)
    assert model.attached["test"] == {True}
    bl.detach(model)
    assert not is_attached(model.rnn)


def test_an_algorithm_for_each_chain():
    model = Stacked()
    train = trainer(bl.BPPSAStrategy({"": "linear", "top": "chunked"}))
    train.fit(model, data())
    assert [plan.algorithm for _, _, plan in train.strategy.scans] == ["chunked", "linear"]


def test_only_what_the_strategy_attached_is_detached():
    model = Stacked()
    bl.attach(model.top, "linear")
    train = trainer(bl.BPPSAStrategy("chunked"))
    train.fit(model, data())
    assert sorted(p.algorithm for _, _, p in train.strategy.scans) == ["chunked", "linear"]
    assert is_attached(model.top) and not is_attached(model.rnn)


def test_the_user_may_detach_and_attach_inside_fit():
    class Undecided(Attachment):
        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 1:
                bl.detach(self)
            elif batch_idx == 2:
                bl.attach(self, "chunked")
            elif batch_idx == 3:
                bl.detach(self)

        def on_after_backward(self):
            assert bool(self.trainer.strategy.scans) == (len(self.losses) in (1, 3))

    model = fit("bppsa", Undecided)
    assert len(model.losses) == 4 and model.attached["train"] == {True, False}
    assert_same_training(stock_training(), model, 1e-4)


class NoChain(Classifier):
    """The same task with a layer that is no chain."""

    def __init__(self):
        super().__init__()
        self.rnn = OwnGRU(I, H, batch_first=True)

    def on_after_backward(self):
        if isinstance(self.trainer.strategy, bl.BPPSAStrategy):
            assert self.trainer.strategy.scans == [] == self.trainer.strategy.chains


@contextmanager
def lines_of(caplog):
    """Adds what Lightning's logger is given."""
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(caplog.handler)
    try:
        yield
    finally:
        logger.removeHandler(caplog.handler)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            NoChain,
            "BPPSA accelerates no layer of this model (it supports nn.RNN, nn.GRU, nn.LSTM and "
            "pruned Conv2d and Linear layers). Not accelerated: rnn (overrides forward)",
        ),
        (Classifier, "BPPSA accelerates 1 of 1 recurrent layers: rnn (RNN-tanh)"),
        (
            Stacked,
            "BPPSA accelerates 2 of 3 recurrent layers: rnn (RNN-tanh), top (RNN-tanh). Not "
            "accelerated: gru (overrides forward). Details: bl.explain(model)",
        ),
    ],
)
def test_the_strategy_says_what_it_scans(model, said, caplog):
    with lines_of(caplog):
        fit("bppsa", model)
    assert any(record.getMessage().startswith(said) for record in caplog.records)


def test_evaluations_say_it_once(caplog):
    model, train = Attachment(), trainer("bppsa")
    with lines_of(caplog):
        for _ in range(3):
            train.predict(model, data())
    said = {id(r) for r in caplog.records if "BPPSA accelerates" in r.getMessage()}
    assert len(said) == 1


def test_a_model_without_chains_trains_to_the_same_bits():
    stock, scanned = both(NoChain, max_steps=8)
    assert stock.losses == scanned.losses
    assert_identical(weights(scanned), weights(stock))


def test_each_new_model_is_explained_and_a_fit_is_not_forgotten(caplog):
    class Other(Stacked):
        def predict_step(self, batch, batch_idx):
            return self(batch[0])

    train, model = trainer("bppsa"), Attachment()
    train.fit(model, data())
    fitted = train.strategy.explanation
    train.predict(model, data())
    assert train.strategy.explanation == fitted
    with lines_of(caplog):
        train.predict(Other(), data())
    assert "BPPSA accelerates 2 of 3" in caplog.text
    assert train.strategy.explanation.startswith("Other: 2 of 3")
    copy = pickle.loads(pickle.dumps(train.strategy._runs))
    assert copy.begin(model, train) == [] and copy.news


def test_the_explanation_outlives_the_run():
    strategy = bl.BPPSAStrategy(algorithm="chunked")
    assert strategy.explanation == ""
    model = fit(strategy, max_steps=2)
    assert "Classifier: 1 of 1 recurrent layers accelerated" in strategy.explanation
    assert "chunked" in strategy.explanation and "forward" not in model.rnn.__dict__


class Target(Classifier):
    """Deep copies of attached layers, made in the run and kept, as of a target network."""

    kind = nn.RNN

    def __init__(self):
        super().__init__()
        self.rnn = self.kind(I, H, batch_first=True)
        self.drop = nn.Dropout(0.1)

    def on_train_start(self):
        self.target = copy.deepcopy(self.rnn)
        self.other_drop = copy.deepcopy(self.drop)
        assert is_attached(self.target)

    def forward(self, x):
        with torch.no_grad():
            self.target(self.other_drop(x))
        return super().forward(self.drop(x))


class TargetOfSubclass(Target):
    class Own(nn.RNN):
        def forward(self, *args):
            return super().forward(*args)

    kind = Own


@pytest.mark.parametrize("model", [Target, TargetOfSubclass])
@pytest.mark.parametrize("settings", [{}, {"callbacks": "attach"}], ids=["strategy", "callback"])
def test_copies_that_the_user_made_meanwhile_are_detached_too(model, settings):
    strategy = "bppsa"
    if settings:
        strategy, settings = STOCK, {"callbacks": [bl.Attach()]}
    model = fit(strategy, model, **settings)
    for layer in (model.rnn, model.target, model.drop, model.other_drop):
        assert not is_attached(layer) and "forward" not in layer.__dict__
    assert type(model.target) is model.kind


class Nested(Classifier):
    """Another training of the same layer within a training."""

    def on_train_epoch_start(self):
        if not self.trainer.current_epoch:
            inner = Classifier()
            inner.rnn = self.rnn
            trainer("bppsa", max_epochs=1).fit(inner, data())
            assert is_attached(self.rnn) and not is_attached(inner.head)


def test_a_training_within_leaves_what_the_outer_one_attached():
    model = fit("bppsa", Nested)
    assert not is_attached(model.rnn)


def test_a_copy_of_what_the_user_attached_stays():
    model = Target()
    bl.attach(model)
    trainer("bppsa").fit(model, data())
    assert is_attached(model.rnn) and is_attached(model.target)
