"""SparseJacobianPruning beside whatever else holds a parameter or wants to see it dense.

The judge is Lightning's own ModelPruning with the same settings.
"""

import copy

import pytest
import torch
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    Callback,
    EMAWeightAveraging,
    ModelCheckpoint,
)
from support.pruning_runs import Network, as_stock, density, fit, in_pairs
from torch import nn

import bppsa_lightning as bl

pytestmark = pytest.mark.usefixtures("every_layer_is_sparse")

HOW = {"amount": 0.7, "parameter_names": ["weight"], "use_global_unstructured": False}


class Optimized(Network):
    """Trained by whatever optimizer is made of its trainable parameters."""

    def __init__(self, optimizer):
        torch.manual_seed(0)
        super().__init__()
        self.optimizer = optimizer

    def configure_optimizers(self):
        return self.optimizer([p for p in self.parameters() if p.requires_grad])


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


class Own(torch.optim.SGD):
    """An optimizer of somebody's own; may look at anything."""


class Sizes(Callback):
    """How many numbers each layer's parameter holds, epoch by epoch."""

    def __init__(self):
        self.shapes = []

    def on_train_epoch_start(self, trainer, model):
        layers = [m for m in model.net if isinstance(m, nn.Conv2d | nn.Linear)]
        self.shapes.append([m._parameters.get("weight_orig", m.bias).dim() for m in layers])


def assert_same_training(model, *callbacks, at_epochs=(0, 2), **settings):
    """Trains two of `model()`, with stock's pruning and with ours."""
    how = {**HOW, "at_epochs": list(at_epochs)}
    stock = fit(as_stock(**how), *[c() for c in callbacks], model=model(), **settings)
    sizes = Sizes()
    ours = fit(
        bl.SparseJacobianPruning(**how), *[c() for c in callbacks], sizes, model=model(), **settings
    )
    assert ours.losses == pytest.approx(stock.losses, rel=1e-9)
    assert density(ours) == density(stock) < 0.4
    for mine, theirs in in_pairs(ours, stock):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)
    return sizes.shapes


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.Adafactor(p, 0.01),
        lambda p: torch.optim.LBFGS(p, 0.05, max_iter=2),
        lambda p: Own(p, 0.05),
    ],
    ids=["Adafactor", "LBFGS", "own"],
)
def test_an_optimizer_that_may_look_at_shapes_keeps_dense_parameters(optimizer, caplog):
    with caplog.at_level("INFO"):
        shapes = assert_same_training(lambda: Optimized(optimizer))
    assert shapes[1] == [4, 4, 2]
    assert "stays dense" in caplog.text and "may depend on a weight's shape" in caplog.text


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad"])
def test_elementwise_optimizers_hold_the_survivors_alone(optimizer):
    make = getattr(torch.optim, optimizer)
    shapes = assert_same_training(lambda: Optimized(lambda p: make(p, 1e-3)))
    assert shapes[1] == [1, 1, 1]


class Tied(Optimized):
    """Two convolutions with one weight."""

    def __init__(self):
        super().__init__(sgd)
        self.net[3] = nn.Conv2d(8, 8, 3, padding=1)
        self.net.insert(4, nn.Conv2d(8, 8, 3, padding=1))
        self.net[4].weight = self.net[3].weight
        self.net[-1] = nn.Linear(32, 4)


def test_a_weight_of_two_layers_stays_one():
    shapes = assert_same_training(Tied, at_epochs=(0,), max_epochs=3)
    assert shapes[1] == [1, 4, 4, 1]


def hooked():
    model = Optimized(sgd)
    model.net[3].weight.register_hook(lambda gradient: 2 * gradient)
    return model


def test_a_hook_on_a_weight_is_called_on():
    assert assert_same_training(hooked)[1] == [1, 4, 1]


class Thawing(BaseFinetuning):
    """The first layer is frozen for two epochs."""

    def freeze_before_training(self, model):
        self.freeze(model.net[0])

    def finetune_function(self, model, epoch, optimizer):
        if epoch == 2:
            self.unfreeze_and_add_param_group(model.net[0], optimizer, lr=0.01)


def test_a_layer_thawed_while_compact_stays_thawed_when_it_is_pruned_again():
    assert_same_training(lambda: Optimized(sgd), Thawing, at_epochs=(0, 3), max_epochs=6)


def test_masks_of_a_fit_are_not_the_next_one_s(tmp_path):
    """The second fit of a model prunes later; a checkpoint before that has no masks."""
    model, first = Optimized(sgd), {**HOW, "at_epochs": [0]}
    callback = bl.SparseJacobianPruning(**first)
    fit(callback, model=model, max_epochs=2)
    callback._apply_pruning = False
    keep = ModelCheckpoint(tmp_path, filename="second")
    fit(callback, keep, model=model, max_epochs=2)
    saved = torch.load(tmp_path / "second.ckpt", weights_only=True)["callbacks"]
    assert [s["masks"] for name, s in saved.items() if "Pruning" in name] == [{}]
    assert density(model) > 0.9


def of_each_kind(make, **settings):
    """Two callbacks: convolutions at the end of epochs 0 and 2, linear layers at that of 1."""
    how = {**HOW, "amount": 0.5}
    convolutions = make(**how, **settings, at_epochs=[0, 2])
    linear = make(**{**how, "amount": 0.7}, **settings, at_epochs=[1])
    kinds = {convolutions: nn.Conv2d, linear: nn.Linear}
    for callback, kind in kinds.items():
        callback.filter_parameters_to_prune = lambda parameters, kind=kind: [
            (module, name) for module, name in parameters if isinstance(module, kind)
        ]
    return [convolutions, linear]


@pytest.mark.parametrize("compact", [True, False])
def test_two_callbacks_prune_in_turns(compact):
    """Each finds dense what the other has made compact."""
    stock = fit(*of_each_kind(as_stock), model=Optimized(sgd))
    callbacks, sizes = of_each_kind(bl.SparseJacobianPruning, compact=compact), Sizes()
    ours = fit(*callbacks, sizes, model=Optimized(sgd))
    assert ours.losses == pytest.approx(stock.losses, rel=1e-9)
    for mine, theirs in in_pairs(ours, stock):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)
    # Of a convolution a half stays, which is too much to be compact, then a quarter.
    assert sizes.shapes[2:] == ([[4, 4, 1], [1, 1, 1]] if compact else [[4, 4, 2], [4, 4, 2]])
    assert callbacks[0].explanation == callbacks[1].explanation
    assert "3 of 3 pruned layers accelerated" in callbacks[0].explanation


@pytest.mark.parametrize("order", [1, -1])
def test_two_callbacks_go_on_from_one_checkpoint(tmp_path, order):
    """All find the masks of all, whatever their order and settings are by then."""
    keeping = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    both, float32 = of_each_kind(bl.SparseJacobianPruning), {"precision": "32-true"}
    whole = fit(*both, keeping, model=Optimized(sgd), **float32)
    again = of_each_kind(bl.SparseJacobianPruning)[::order]
    rest = fit(*again, model=Optimized(sgd), ckpt_path=tmp_path / "epoch=1.ckpt", **float32)
    assert rest.losses == whole.losses[6:]
    for mine, theirs in in_pairs(rest, whole):
        assert torch.equal(mine, theirs)


def test_checkpoints_with_masks_alone_are_read(tmp_path):
    """As they were before a checkpoint told of epochs and of first values."""
    how, float32 = {**HOW, "at_epochs": [0, 2]}, {"precision": "32-true"}
    keeping = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    whole = fit(bl.SparseJacobianPruning(**how), keeping, model=Optimized(sgd), **float32)
    path = tmp_path / "epoch=1.ckpt"
    saved = torch.load(path, weights_only=True)
    state = saved["callbacks"]["SparseJacobianPruning"]
    saved["callbacks"]["SparseJacobianPruning"] = {"masks": state["masks"]}
    torch.save(saved, path)
    rest = fit(bl.SparseJacobianPruning(**how), model=Optimized(sgd), ckpt_path=path, **float32)
    assert rest.losses == whole.losses[6:]


class Average(Callback):
    """Of each weight, masked or not yet, after every step, as EMAWeightAveraging is to take it."""

    def __init__(self, decay):
        self.decay, self.kept = decay, {}

    def on_train_batch_end(self, trainer, model, *_):
        for name, value in model.named_parameters():
            own = name.removesuffix("_orig")
            self.kept.setdefault(own, value.detach().clone()).lerp_(value.detach(), 1 - self.decay)


@pytest.mark.parametrize("pruned_by", ["all", "weight"])
def test_weights_are_averaged_beside_it(pruned_by):
    """Lightning's averaging goes through the parameters of two models side by side."""
    names = {} if pruned_by == "all" else {"parameter_names": ["weight"]}
    how = {"amount": 0.7, "at_epochs": [0], "compact": False, **names}
    average, model = Average(0.9), Optimized(sgd)
    callbacks = [EMAWeightAveraging(decay=0.9), average, bl.SparseJacobianPruning(**how)]
    fit(*callbacks, model=model, max_epochs=3)
    assert density(model) < 0.4
    for name, value in model.named_parameters():
        wanted = torch.where(value == 0, 0, average.kept[name])
        torch.testing.assert_close(value.detach(), wanted)


class Manual(Network):
    """Its optimizer is nobody's but its own."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        self.own = sgd(self.parameters())

    def training_step(self, batch, batch_idx):
        self.own.zero_grad()
        super().training_step(batch, batch_idx).backward()
        self.own.step()


def test_an_optimizer_that_the_trainer_does_not_hold_keeps_dense_parameters(caplog):
    with caplog.at_level("INFO"):
        assert assert_same_training(Manual)[1] == [4, 4, 2]
    assert "stays dense: no optimizer of the Trainer holds it" in caplog.text


class Copied(Optimized):
    """Keeps a copy of what it trains."""

    def __init__(self):
        super().__init__(sgd)
        self.copied = None

    def on_train_epoch_end(self):
        if self.current_epoch == 1:
            with torch.no_grad():  # what has a graph cannot be copied
                self(torch.zeros(1, 1, 8, 8, dtype=torch.float64))
            self.copied = copy.deepcopy(self.net)


@pytest.mark.parametrize("permanent", [True, False])
@pytest.mark.parametrize("strategy", ["auto", "bppsa"])
def test_a_copy_that_the_model_keeps_ends_as_the_model_does(strategy, permanent):
    how = {**HOW, "at_epochs": [0, 2], "make_pruning_permanent": permanent}
    settings = {"strategy": strategy, "max_epochs": 4}
    stock = fit(as_stock(**how), model=Copied(), **settings)
    ours = fit(bl.SparseJacobianPruning(**how), model=Copied(), **settings)
    assert ours.losses == pytest.approx(stock.losses, rel=1e-9)
    assert ours.state_dict().keys() == stock.state_dict().keys()
    mine, theirs = (dict(model.copied.named_parameters()) for model in (ours, stock))
    assert {n: p.shape for n, p in mine.items()} == {n: p.shape for n, p in theirs.items()}
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(ours.copied(x), stock.copied(x))
