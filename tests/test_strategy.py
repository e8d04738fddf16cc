"""Trainer(strategy="bppsa"): every feature of the Trainer as with its own strategy.

T steps, B batch, H state, I input. The judge is always the same training under Lightning's own
strategy, STOCK.
"""

import logging
import signal

import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from lightning.pytorch.tuner import Tuner
from support.cases import needs_gpu
from support.helpers import (
    B,
    Classifier,
    H,
    I,
    T,
    assert_close,
    assert_identical,
    data,
    fit,
    is_attached,
    stock_training,
    trainer,
    weights,
)
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl

STOCK = "auto"
ALGORITHMS = ("auto", "linear", "chunked", "blelloch")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
]


def both(model=Classifier, **settings):
    """The same training under STOCK and under "bppsa", in float64 unless told otherwise."""
    settings = {"precision": "64-true", **settings}
    stock, scanned = stock_training(model, **settings), fit("bppsa", model, **settings)
    assert type(stock.trainer.strategy) is SingleDeviceStrategy
    assert type(scanned.trainer.strategy) is bl.BPPSAStrategy
    assert scanned.trainer.global_step == stock.trainer.global_step > 0
    return stock, scanned


def assert_same_training(stock, scanned, tolerance=1e-10):
    assert len(scanned.losses) == len(stock.losses) > 0
    assert scanned.losses == pytest.approx(stock.losses, rel=tolerance)
    assert_close(weights(scanned), weights(stock), tolerance)


class Manual(Classifier):
    """Manual optimisation, one backward a step."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()


# --- The swap ----------------------------------------------------------------------------------


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


class SeveralBackwards(Manual):
    """A graph kept for a second backward of the same loss."""

    def training_step(self, batch, batch_idx):
        loss = Classifier.training_step(self, batch, batch_idx)
        self.optimizers().zero_grad()
        self.manual_backward(loss, retain_graph=True)
        self.manual_backward(2 * loss)
        self.optimizers().step()


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


class OwnGRU(nn.GRU):
    """A layer with a forward of the user's own, which keeps PyTorch's path."""

    def forward(self, input, hx=None):
        return super().forward(input, hx)


class Stacked(Classifier):
    """A chain, a layer that is none, a chain that shares the first one's weights."""

    def __init__(self):
        super().__init__()
        self.gru = OwnGRU(H, H, batch_first=True)
        self.top = nn.RNN(H, H, batch_first=True)
        self.top.weight_hh_l0 = self.rnn.weight_hh_l0

    def forward(self, x):
        output, hn = self.rnn(x)
        output, _ = self.top(self.gru(output)[0], hn)
        return self.head(output.mean(1))


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


class Closure(Classifier):
    """An optimizer that asks for several backwards a step."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=4)


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


# --- Hooks -------------------------------------------------------------------------------------

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


# --- Attached in fit, and only there -----------------------------------------------------------


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


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_evaluation_alone_does_not_attach(stage):
    torch.manual_seed(0)
    model = Attachment()
    before = model.rnn.__dict__.copy()
    getattr(trainer("bppsa"), stage)(model, data())
    assert model.attached[stage] == {False}
    assert model.rnn.__dict__.keys() == before.keys()


def test_one_trainer_fits_evaluates_and_fits_again():
    model = Attachment()
    train = trainer("bppsa", max_epochs=1)
    for _ in range(2):
        train.fit(model, data())
        assert model.attached["train"] == {True}
        assert not is_attached(model.rnn) and train.strategy.chains == []
        train.test(model, data(), verbose=False)
        assert model.attached["test"] == {False}
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
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(caplog.handler)
    try:
        fit("bppsa", model)
    finally:
        logger.removeHandler(caplog.handler)
    assert any(record.getMessage().startswith(said) for record in caplog.records)


def test_a_model_without_chains_trains_to_the_same_bits():
    stock, scanned = both(NoChain, max_steps=8)
    assert stock.losses == scanned.losses
    assert_identical(weights(scanned), weights(stock))


# --- The planner as users get it -----------------------------------------------------------------


class Lengths(Classifier):
    """Reads the first `lengths[i]` steps of batch i; notes how many scans its backward ran."""

    lengths = (T, T, T, T)

    def __init__(self):
        super().__init__()
        self.scans = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step((x[:, : self.lengths[batch_idx]], y), batch_idx)

    def on_after_backward(self):
        if isinstance(self.trainer.strategy, bl.BPPSAStrategy):
            self.scans.append(len(self.trainer.strategy.scans))


def test_short_calls_are_left_to_pytorch_and_train_to_the_same_bits():
    class Short(Lengths):
        lengths = (2, 1, 2, 1)

        def on_train_end(self):
            if isinstance(self.trainer.strategy, bl.BPPSAStrategy):
                [chain] = self.trainer.strategy.chains
                assert (chain.calls, chain.fallback_calls) == (0, 4) and chain.reason

    stock, ours = both(Short)
    assert ours.scans == [0] * 4 and ours.losses == stock.losses
    assert_identical(weights(ours), weights(stock))
    assert "0 of 4 calls accelerated; last fallback: " in ours.trainer.strategy.explanation


def test_the_planner_is_asked_for_every_call():
    class Mixed(Lengths):
        lengths = (T, 2, T, 2)

    stock, ours = both(Mixed)
    assert ours.scans == [1, 0, 1, 0]
    assert_same_training(stock, ours)


# --- Checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"), [("bppsa", STOCK), (STOCK, "bppsa"), ("bppsa", "bppsa")]
)
def test_checkpoints_resume_under_either_strategy(first, second, tmp_path):
    save = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    uninterrupted = stock_training(max_epochs=3, precision="64-true")
    fit(first, max_epochs=1, precision="64-true", callbacks=[save], enable_checkpointing=True)
    torch.manual_seed(9)
    resumed = Classifier()
    train = trainer(second, max_epochs=3, precision="64-true")
    train.fit(resumed, data(), ckpt_path=tmp_path / "epoch=0.ckpt")
    # The Trainer loads a checkpoint before it converts the model to float64.
    assert resumed.losses == pytest.approx(uninterrupted.losses[4:], rel=1e-6)
    assert_close(weights(resumed), weights(uninterrupted), 1e-6)


def test_checkpoints_hold_nothing_of_this_package(tmp_path):
    kept = {}
    for strategy in (STOCK, "bppsa"):
        save = ModelCheckpoint(tmp_path, filename=strategy, save_weights_only=False)
        fit(strategy, max_epochs=1, callbacks=[save], enable_checkpointing=True)
        path = tmp_path / f"{strategy}.ckpt"
        assert b"bppsa_lightning" not in path.read_bytes()
        kept[strategy] = torch.load(path, weights_only=True)
    assert kept["bppsa"].keys() == kept[STOCK].keys()
    assert list(kept["bppsa"]["state_dict"]) == list(kept[STOCK]["state_dict"])
    assert "strategy" not in kept["bppsa"]


def test_load_from_checkpoint(tmp_path):
    model = fit("bppsa")
    model.trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = Classifier.load_from_checkpoint(tmp_path / "model.ckpt")
    assert_identical(weights(loaded), weights(model))


# --- How the strategy is named -----------------------------------------------------------------


def test_the_name_is_registered():
    assert "bppsa" in StrategyRegistry.available_strategies()
    assert StrategyRegistry["bppsa"]["strategy"] is bl.BPPSAStrategy
    assert bl.BPPSAStrategy.strategy_name == "bppsa"


def test_by_name_or_by_instance():
    by_name, by_instance = fit("bppsa"), fit(bl.BPPSAStrategy())
    assert_identical(weights(by_name), weights(by_instance))
    assert by_name.trainer.strategy.algorithm == by_instance.trainer.strategy.algorithm == "auto"
    assert by_name.trainer.strategy.root_device == torch.device("cpu")


def test_one_instance_serves_two_trainers():
    strategy = bl.BPPSAStrategy(algorithm="chunked")
    first, second = fit(strategy), fit(strategy, accelerator="auto")
    assert first.trainer is not second.trainer
    assert_identical(weights(first), weights(second))
    assert strategy.chains == [] and strategy.scans[0][2].algorithm == "chunked"


CONFIG = """
trainer:
  strategy:
    class_path: bppsa_lightning.BPPSAStrategy
    init_args:
      algorithm: chunked
"""


@pytest.mark.parametrize(
    ("how", "algorithm"),
    [
        (["--trainer.strategy=bppsa"], "auto"),
        (["--trainer.strategy.class_path=bppsa_lightning.BPPSAStrategy"], "auto"),
        (
            ["--trainer.strategy=bppsa_lightning.BPPSAStrategy"]
            + ["--trainer.strategy.algorithm=blelloch"],
            "blelloch",
        ),
        (CONFIG, "chunked"),
    ],
    ids=["name", "class path", "argument", "YAML"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_from_the_command_line(how, algorithm, tmp_path):
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI

    if isinstance(how, str):
        (tmp_path / "config.yaml").write_text(how)
        how = [f"--config={tmp_path / 'config.yaml'}"]
    off = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]
    cli = LightningCLI(
        Classifier,
        args=[*how, "--trainer.accelerator=cpu", "--trainer.max_steps=2", "--model.hidden=5"]
        + [f"--trainer.{name}=false" for name in off],
        run=False,
        save_config_callback=None,
    )
    cli.trainer.fit(cli.model, data())
    assert isinstance(cli.trainer.strategy, bl.BPPSAStrategy)
    assert cli.trainer.strategy.algorithm == algorithm
    [(_, shape, plan)] = cli.trainer.strategy.scans
    assert shape == (T, B, 5) and algorithm in ("auto", plan.algorithm)


@pytest.mark.parametrize(
    ("algorithm", "error", "message"),
    [
        ("fast", ValueError, "algorithm: found 'fast', wanted one of auto, linear"),
        (3, TypeError, "algorithm: found int, wanted str"),
    ],
)
def test_an_unknown_algorithm_is_refused_at_once(algorithm, error, message):
    with pytest.raises(error, match=message):
        bl.BPPSAStrategy(algorithm=algorithm)


@pytest.mark.parametrize(
    ("device", "chosen", "root"),
    [
        (None, [torch.device("cpu")], "cpu"),
        (None, [torch.device("cuda", 1)], "cuda:1"),
        (None, [], "cpu"),
        ("meta", [torch.device("cpu")], "meta"),
    ],
)
def test_the_trainers_choice_of_device_counts_unless_the_user_made_one(device, chosen, root):
    strategy = bl.BPPSAStrategy(device=device)
    strategy.parallel_devices = chosen
    assert strategy.root_device == torch.device(root)


# --- On a GPU ----------------------------------------------------------------------------------


class OnGPU(Classifier):
    """Checks where its parameters and batches are."""

    def training_step(self, batch, batch_idx):
        assert {p.device.type for p in self.parameters()} == {"cuda"}
        assert {t.device.type for t in batch} == {"cuda"}
        return super().training_step(batch, batch_idx)

    def on_after_backward(self):
        super().on_after_backward()
        assert all(p.grad.device.type == "cuda" for p in self.parameters())


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(how, marks=needs_gpu) for how in ("bppsa", "instance", "device")],
)
@pytest.mark.usefixtures("accelerate_everything")
def test_on_a_gpu(strategy):
    made = {
        "instance": lambda: bl.BPPSAStrategy(algorithm="chunked"),
        "device": lambda: bl.BPPSAStrategy(device="cuda:0"),
    }
    found = fit(made.get(strategy, lambda: strategy)(), OnGPU, accelerator="cuda", max_steps=20)
    assert found.trainer.strategy.root_device == torch.device("cuda", 0)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        stock = fit(STOCK, OnGPU, accelerator="cuda", max_steps=20)
    assert_same_training(stock, found, 1e-3)
    assert not is_attached(found.rnn)


@pytest.mark.parametrize(
    "precision", [pytest.param(p, marks=needs_gpu) for p in ("16-mixed", "bf16-mixed")]
)
@pytest.mark.usefixtures("accelerate_everything")
def test_mixed_precision_on_a_gpu(precision):
    settings = {"accelerator": "cuda", "precision": precision, "max_steps": 60}
    stock, found = fit(STOCK, OnGPU, **settings), fit("bppsa", OnGPU, **settings)
    assert found.losses == pytest.approx(stock.losses, rel=0.05)
    assert sum(found.losses[-4:]) < 0.9 * sum(found.losses[:4])


def test_the_explanation_outlives_fit():
    strategy = bl.BPPSAStrategy(algorithm="chunked")
    assert strategy.explanation == ""
    model = fit(strategy, max_steps=2)
    assert "Classifier: 1 of 1 recurrent layers accelerated" in strategy.explanation
    assert "chunked" in strategy.explanation and "forward" not in model.rnn.__dict__
