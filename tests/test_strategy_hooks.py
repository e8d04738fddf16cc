"""The strategy's backward within the Trainer's hooks: their order, arguments, and what it tells."""

import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
)
from lightning.pytorch.plugins.precision import Precision
from support.helpers import (
    B,
    Classifier,
    H,
    T,
    fit,
)
from support.strategy_models import STOCK, Closure, Manual, SeveralBackwards, Stacked

import bppsa_lightning as bl

HOOKS = [
    "setup", "configure_model", "configure_optimizers", "on_fit_start", "on_train_start",
    "on_train_epoch_start", "on_train_batch_start", "training_step", "on_before_zero_grad",
    "optimizer_zero_grad", "on_before_backward", "backward", "on_after_backward",
    "on_before_optimizer_step", "configure_gradient_clipping", "optimizer_step",
    "on_train_batch_end", "on_train_epoch_end", "on_train_end", "on_fit_end", "teardown",
]  # fmt: skip


def recording(base, who, events):
    """A subclass of `base` that notes each of its hooks and then does what `base` does."""

    def noting(name):
        def hook(self, *args, **kwargs):
            events.append(f"{who}.{name}({', '.join(sorted(kwargs))})")
            return getattr(super(subclass, self), name)(*args, **kwargs)

        return hook

    subclass = type(base.__name__, (base,), {n: noting(n) for n in HOOKS if hasattr(base, n)})
    return subclass


class Frame(Precision):
    """A precision plugin that notes the frame of each backward."""

    def __init__(self, events):
        self.events = events

    def pre_backward(self, tensor, module):
        self.events.append("plugin.pre_backward")
        return super().pre_backward(tensor * 4, module)

    def backward(self, tensor, model, optimizer, *args, **kwargs):
        self.events.append(f"plugin.backward({len(args)}, {sorted(kwargs)})")
        super().backward(tensor, model, optimizer, *args, **kwargs)

    def post_backward(self, tensor, module):
        self.events.append(f"plugin.post_backward({tensor.item() == 4 * module.losses[-1]})")
        return super().post_backward(tensor, module)


@pytest.mark.parametrize("model", [Classifier, Manual, SeveralBackwards, Closure])
def test_hooks_run_in_the_same_order(model):
    def run(strategy):
        events = []
        callback = recording(Callback, "callback", events)()
        module = recording(model, "module", events)
        fit(strategy, module, max_steps=4, callbacks=[callback], plugins=[Frame(events)])
        return events

    wanted = run(STOCK)
    needed = "module.on_before_backward() plugin.pre_backward module.on_after_backward()"
    assert set(needed.split()) <= set(wanted)
    assert run("bppsa") == wanted


@pytest.mark.parametrize("strategy", [STOCK, "bppsa"])
def test_an_overridden_backward_gets_its_arguments(strategy):
    seen = []

    class Own(SeveralBackwards):
        def backward(self, loss, *args, **kwargs):
            seen.append((loss.item() / self.losses[-1], args, kwargs))
            loss.backward(*args, **kwargs)

        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            loss = self.loss(batch)
            self.manual_backward(loss, None, True)
            self.manual_backward(loss, gradient=torch.tensor(0.5))

    fit(strategy, Own, max_steps=2)
    assert seen[0] == (1, (), {"retain_graph": True}) and seen[1] == (2, (), {})
    assert seen[2][1:] == ((None, True), {}) and list(seen[3][2]) == ["gradient"]


def test_gradients_are_there_in_after_backward_and_losses_are_plain():
    class Checked(Classifier):
        def on_before_backward(self, loss):
            assert self.rnn.weight_hh_l0.grad is None
            assert loss.requires_grad and loss.item() == self.losses[-1] / 2

        def on_after_backward(self):
            super().on_after_backward()
            assert self.rnn.weight_hh_l0.grad.any()

    model = fit("bppsa", Checked, accumulate_grad_batches=2, limit_train_batches=1, max_epochs=2)
    assert len(model.losses) == 2


def test_what_the_strategy_tells():
    seen = []

    class Checked(Stacked):
        def on_after_backward(self):
            strategy = self.trainer.strategy
            seen.append([(cell, shape) for cell, shape, _ in strategy.scans])
            assert [chain.name for chain in strategy.chains] == ["rnn", "top"]
            assert all(chain.calls == len(seen) for chain in strategy.chains)
            assert "gru" in bl.explain(self) and str(T) in bl.explain(self)

    model = fit("bppsa", Checked)
    assert seen == [[("RNN-tanh", (T, B, H))] * 2] * 4
    assert model.trainer.strategy.chains == []


def test_a_scan_log_of_the_users_own_sees_every_scan():
    with bl.ops.scan_log() as log:
        fit("bppsa")
    assert [shape for _, shape, _ in log.scans] == [(T, B, H)] * 4
