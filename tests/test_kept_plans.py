"""The plan that ran is the plan that explain, logs and chains show; and who attached, detaches.

T steps, B batch, I input, H hidden, P projection.
"""

import inspect

import pytest
import torch
from lightning.pytorch.callbacks import ModelPruning
from support.helpers import Classifier, data, fit, is_attached, trainer
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.chain import named_chains
from bppsa_lightning.planner import choose
from bppsa_lightning.recurrent import RecurrentChain

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def scans_of(step):
    with bl.ops.scan_log() as log:
        step()
    return log.scans


# --- one plan ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("accelerate_everything")
@pytest.mark.parametrize("P", [0, 3])
@pytest.mark.parametrize("algorithm", ["auto", "chunked", "blelloch"])
def test_the_plan_that_ran_is_the_plan_that_is_shown(P, algorithm):
    """Of a projected LSTM, too: on the CPU its scan carries P numbers, not H."""
    lstm = nn.LSTM(2, 64, proj_size=P)
    (chain,) = bl.attach(lstm, algorithm)
    ((_, shape, plan),) = scans_of(lambda: lstm(torch.randn(60, 4, 2))[0].sum().backward())
    assert shape == (60, 4, P or 64)
    assert chain.plan is plan
    assert plan == planner.plan(planner.Request("lstm", 60, 4, 64, CPU, algorithm, I=2, P=P))
    assert plan.reason in bl.explain(lstm)


@pytest.mark.usefixtures("accelerate_everything")
def test_a_backward_runs_the_plan_of_its_own_forward():
    gru = nn.GRU(2, 3)
    (chain,) = bl.attach(gru, "chunked")
    first = gru(torch.randn(200, 2, 2))[0].sum()
    chain.algorithm = "linear"
    second = gru(torch.randn(50, 1, 2))[0].sum()
    for loss, size, algorithm in ((first, (200, 2, 3), "chunked"), (second, (50, 1, 3), "linear")):
        ((_, shape, plan),) = scans_of(loss.backward)
        assert (shape, plan.algorithm) == (size, algorithm)


@pytest.mark.usefixtures("accelerate_everything")
def test_a_call_is_planned_once(monkeypatch):
    asked = []
    plan = planner.plan
    monkeypatch.setattr(planner, "plan", lambda request: asked.append(request) or plan(request))
    gru = nn.GRU(2, 3, num_layers=2, bidirectional=True)
    bl.attach(gru)
    gru(torch.randn(20, 4, 2))[0].sum().backward()
    bl.explain(gru)
    assert len(asked) == 1


def test_a_plan_on_cuda_counts_inputs_and_projections(monkeypatch):
    monkeypatch.setattr(choose, "gpu", lambda device: (132, True))

    def seconds(**more):
        return planner.plan(planner.Request("lstm", 1000, 64, 256, CUDA, **more)).seconds

    assert seconds() < seconds(I=512) and seconds() < seconds(P=128)


def stack(*sizes):
    """Two runs of layers, as the batch norm between them is in training mode."""
    first, inner, second = sizes
    return nn.Sequential(
        nn.Linear(first, inner), nn.Tanh(), nn.BatchNorm1d(inner),
        nn.Linear(inner, second), nn.Tanh(), nn.Linear(second, 2),
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", ["linear", "blelloch"])
def test_each_run_of_a_stack_logs_its_own_size(algorithm):
    model = stack(5, 7, 3)
    bl.attach(model, algorithm)
    scans = scans_of(lambda: model(torch.randn(4, 5)).sum().backward())
    assert [shape for _, shape, _ in scans] == [(3, 4, 7), (2, 4, 7)]
    assert {plan.algorithm for _, _, plan in scans} == {algorithm}


def test_each_backward_of_a_stack_logs_its_own_forward():
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    (chain,) = bl.attach(model, "blelloch")
    large = model(torch.randn(8, 5)).sum()
    chain.levels = 1
    small = model(torch.randn(3, 5)).sum()
    for loss, B, levels in ((large, 8, 2), (small, 3, 1)):
        ((_, shape, plan),) = scans_of(loss.backward)
        assert (shape, plan.levels) == ((3, B, 7), levels)


# --- who attached, detaches --------------------------------------------------------------------


class WithStack(Classifier):
    """A model with a stack behind its recurrent layer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.stack = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def on_train_batch_end(self, *_):
        self.stack(torch.randn(2, 4)).sum().backward()


@pytest.mark.parametrize("algorithm", ["auto", "chunked"])
def test_a_stack_that_the_user_attached_stays_attached(algorithm):
    model = WithStack()
    (chain,) = bl.attach(model.stack, "blelloch")
    run = trainer(bl.BPPSAStrategy(algorithm=algorithm), max_steps=2)
    run.fit(model, data())
    assert model.stack.forward is chain and chain.algorithm == "blelloch" and chain.calls == 2
    assert not is_attached(model.rnn)
    assert list(named_chains(model)) == ["stack"]


def test_an_explanation_that_fails_leaves_nothing_attached(monkeypatch):
    """And hides no earlier error: after one of the device, every call on it fails."""

    class Failing(Classifier):
        def on_train_batch_end(self, *_):
            monkeypatch.setattr(RecurrentChain, "sizes", property(broken))
            raise ValueError("the first error")

    def broken(_):
        raise RuntimeError("an error of the device")

    model = Failing()
    run = trainer("bppsa", max_steps=2)
    with pytest.raises(ValueError, match="the first error"):
        run.fit(model, data())
    assert not is_attached(model.rnn) and not run.strategy.chains
    assert "an error of the device" in run.strategy.explanation


def test_the_scans_are_seen_as_soon_as_the_backward_is_over():
    class Watching(Classifier):
        def on_after_backward(self):
            self.seen = list(self.trainer.strategy.scans)

    model = fit("bppsa", Watching, max_steps=1)
    assert [cell for cell, _, _ in model.seen] == ["RNN-tanh"]


def test_compiled_calls_change_no_record(monkeypatch):
    rnn = nn.RNN(2, 3)
    (chain,) = bl.attach(rnn)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    chain.record_call("a reason")
    assert (chain.calls, chain.fallback_calls, chain.reason, chain.last_fallback) == (
        0, 0, None, None,
    )  # fmt: skip


def test_pruning_takes_the_positions_of_model_pruning():
    stock = list(inspect.signature(ModelPruning).parameters)
    ours = list(inspect.signature(bl.SparseJacobianPruning).parameters)
    assert ours[: len(stock)] == stock
