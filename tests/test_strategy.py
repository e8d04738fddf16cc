"""Trainer(strategy="bppsa"): every feature of the Trainer as with its own strategy.

T steps, B batch, H state, I input. The judge is always the same training under Lightning's own
strategy, STOCK.
"""

import pytest
import torch
from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    ModelPruning,
    StochasticWeightAveraging,
)
from lightning.pytorch.tuner import Tuner
from support.helpers import (
    B,
    Classifier,
    H,
    I,
    T,
    assert_identical,
    data,
    fit,
    is_attached,
    stock_training,
    trainer,
    weights,
)
from support.strategy_models import (
    ALGORITHMS,
    STOCK,
    Closure,
    Manual,
    SeveralBackwards,
    Stacked,
    assert_same_training,
    both,
)
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl


@pytest.mark.parametrize(("precision", "tolerance"), [("32-true", 1e-5), ("64-true", 1e-12)])
def test_a_hundred_steps_of_adam_have_the_same_losses(precision, tolerance):
    stock, scanned = both(precision=precision, max_steps=100)
    assert len(stock.losses) == 100 and stock.losses[-1] < 0.9 * stock.losses[0]
    assert_same_training(stock, scanned, tolerance)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_alike_and_to_the_same_bits(algorithm):
    class Checked(Classifier):
        def on_after_backward(self):
            [(cell, shape, plan)] = self.trainer.strategy.scans
            assert (cell, shape) == ("RNN-tanh", (T, B, H))
            assert algorithm in ("auto", plan.algorithm)
            [chain] = self.trainer.strategy.chains
            assert chain.plan == plan

    first, second = (fit(bl.BPPSAStrategy(algorithm), Checked, max_steps=20) for _ in range(2))
    assert first.losses == second.losses
    assert_identical(weights(first), weights(second))
    stock = stock_training(max_steps=20)
    assert_same_training(stock, first, 1e-4)


class Adversaries(Manual):
    """Two networks, two optimizers, taking turns as in a GAN."""

    def __init__(self):
        super().__init__()
        self.generator = nn.RNN(I, I, batch_first=True, nonlinearity="relu")

    def training_step(self, batch, batch_idx):
        x, y = batch
        for_critic, for_generator = self.optimizers()
        for optimizer, sign, scans in ((for_critic, 1, 1), (for_generator, -1, 2)):
            self.toggle_optimizer(optimizer)
            loss = sign * self.loss((self.generator(x)[0], y))
            optimizer.zero_grad()
            self.scans_wanted = scans
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
            self.losses.append(loss.item())

    def on_after_backward(self):
        if isinstance(self.trainer.strategy, bl.BPPSAStrategy):
            assert len(self.trainer.strategy.scans) == self.scans_wanted

    def configure_optimizers(self):
        critic = [*self.rnn.parameters(), *self.head.parameters()]
        return torch.optim.Adam(critic, 0.01), torch.optim.SGD(self.generator.parameters(), 0.1)


class CarriedState(Manual):
    """Truncated back-propagation: one state through the pieces of a batch, a backward a piece."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        state = torch.zeros(1, len(x), H, dtype=x.dtype)
        for piece in x.split(5, dim=1):
            output, state = self.rnn(piece, state.detach())
            loss = nn.functional.cross_entropy(self.head(output[:, -1]), y)
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
            self.losses.append(loss.item())


class OwnBackward(Classifier):
    """A backward of the user's own."""

    def backward(self, loss, *args, **kwargs):
        assert not args and not kwargs
        (loss * 0.5).backward()
        self.rnn.weight_hh_l0.grad.mul_(2)


class GradientPenalty(Classifier):
    """A derivative in the forward, and of it in the backward."""

    def loss(self, batch):
        x, y = batch
        x = x.clone().requires_grad_()
        loss = super().loss((x, y))
        [slope] = torch.autograd.grad(loss, x, create_graph=True)
        return loss + slope.square().sum()


class Recomputed(Classifier):
    """The recurrent layer under activation checkpointing."""

    def forward(self, x):
        output, _ = checkpoint(self.rnn, x, use_reentrant=False)
        return self.head(output.mean(1))


class Pruned(Classifier):
    """Masks on the recurrent weights: their parameter is weight_hh_l0_orig."""

    def __init__(self):
        super().__init__()
        prune.l1_unstructured(self.rnn, "weight_hh_l0", 0.5)


class Frozen(Classifier):
    """A chain whose own weights stay; the gradient goes through it to the layer below."""

    def __init__(self):
        super().__init__()
        self.rnn.requires_grad_(False)
        self.below = nn.Linear(I, I)

    def forward(self, x):
        return super().forward(self.below(x))


class Dictionary(Classifier):
    """A training step that returns a dict."""

    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch, batch_idx), "more": batch_idx}


class EverySecond(Classifier):
    """A training step that skips every second batch by returning None."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx % 2 else None


class Late(Classifier):
    """Layers that exist only once the Trainer asks for them."""

    def __init__(self):
        super().__init__()
        del self.rnn

    def configure_model(self):
        if not hasattr(self, "rnn"):
            self.rnn = nn.RNN(I, H, batch_first=True)


MODELS = [
    Classifier, Manual, SeveralBackwards, Adversaries, CarriedState, OwnBackward, GradientPenalty,
    Recomputed, Pruned, Stacked, Frozen, Dictionary, EverySecond, Closure, Late,
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.usefixtures("accelerate_everything")
def test_models_train_as_under_lightnings_strategy(model):
    stock, scanned = both(model, max_epochs=3)
    assert_same_training(stock, scanned)
    assert not any(is_attached(module) for module in scanned.modules())


class PrunedOnTheWay(Classifier):
    """Masks that come from epoch to epoch, with Lightning's callback and its rewinding."""

    def configure_callbacks(self):
        where = [(self.rnn, "weight_hh_l0"), (self.rnn, "weight_ih_l0")]
        return [ModelPruning("l1_unstructured", where, amount=0.3)]

    def on_train_end(self):
        masked = self.rnn.weight_hh_l0 == 0
        assert 0.3 < masked.float().mean() < 1


def test_pruning_on_the_way():
    stock, scanned = both(PrunedOnTheWay, max_epochs=3, precision="32-true")
    assert_same_training(stock, scanned, 1e-4)


SETTINGS = {
    "accumulation": {"accumulate_grad_batches": 3},
    "accumulation by schedule": {
        "callbacks": lambda: [GradientAccumulationScheduler({0: 2, 2: 3})]
    },
    "clipping by norm": {"gradient_clip_val": 0.05},
    "clipping by value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "few batches": {"limit_train_batches": 2},
    "weight averaging": {"callbacks": lambda: [StochasticWeightAveraging(0.01, 1)]},
}


@pytest.mark.parametrize("what", SETTINGS)
@pytest.mark.filterwarnings("ignore:.*SWALR:UserWarning")
def test_settings_of_the_trainer_act_as_under_lightnings_strategy(what):
    def settings():
        return {key: value() if callable(value) else value for key, value in SETTINGS[what].items()}

    stock, scanned = (
        fit(strategy, precision="64-true", max_epochs=4, **settings())
        for strategy in (STOCK, "bppsa")
    )
    assert_same_training(stock, scanned)
    plain = weights(stock_training(precision="64-true", max_epochs=4))
    assert any(not torch.equal(plain[n], value) for n, value in weights(stock).items()), "no effect"


def test_anomaly_detection_and_deterministic_algorithms():
    try:
        assert_same_training(*both(detect_anomaly=True, deterministic=True))
    finally:
        torch.use_deterministic_algorithms(False)
        torch.autograd.set_detect_anomaly(False)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-true"])
def test_half_precision_trains_and_stays_close(precision):
    class Checked(Classifier):
        def on_after_backward(self):
            super().on_after_backward()
            if isinstance(self.trainer.strategy, bl.BPPSAStrategy):
                assert all(not c.fallback_calls for c in self.trainer.strategy.chains)
            narrow = {"bf16-true": torch.bfloat16, "16-true": torch.float16}
            assert self.rnn.weight_hh_l0.grad.dtype == narrow.get(precision, torch.float32)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.3)

    stock, scanned = both(Checked, precision=precision, max_steps=60)
    assert scanned.losses == pytest.approx(stock.losses, rel=0.05)
    assert sum(scanned.losses[-4:]) < 0.9 * sum(scanned.losses[:4])


def test_the_learning_rate_finder(tmp_path):
    def run(strategy):
        torch.manual_seed(0)
        model = Classifier()
        tune = Tuner(trainer(strategy, precision="64-true", default_root_dir=tmp_path))
        found = tune.lr_find(model, data(samples=60), num_training=15)
        assert not is_attached(model.rnn)
        return found.results["loss"]

    assert run("bppsa") == pytest.approx(run(STOCK), rel=1e-10)
