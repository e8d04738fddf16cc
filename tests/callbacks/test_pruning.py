"""SparseJacobianPruning: ModelPruning's training, its masks through checkpoints, YAML.

The judge is Lightning's own ModelPruning with the same settings.
"""

import functools

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, ModelPruning
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger
from support.cases import relative_error
from support.pruning_runs import Network, as_stock, data, density, fit, in_pairs, seeded

import bppsa_lightning as bl
from bppsa_lightning import pruned

pytestmark = pytest.mark.usefixtures("every_layer_is_sparse")


HOW = {
    "global": {"amount": 0.7, "at_epochs": [0]},
    "of each layer": {"amount": 0.7, "at_epochs": [0], "use_global_unstructured": False},
    "weights only": {"amount": 0.7, "at_epochs": [0], "parameter_names": ["weight"]},
    "again and again": {"amount": 0.3},
    "by number": {"amount": 200, "at_epochs": [0, 2]},
    "random": {"amount": 0.6, "at_epochs": [1], "pruning_fn": "random_unstructured"},
    "channels": {
        "amount": 0.5, "at_epochs": [0], "pruning_fn": "ln_structured", "pruning_dim": 0,
        "pruning_norm": 2, "use_global_unstructured": False, "parameter_names": ["weight"],
    },
    "function of the epoch": {"amount": lambda epoch: 0.1 * (epoch + 1)},
    "lottery ticket": {
        "amount": 0.5, "at_epochs": [0, 1], "use_lottery_ticket_hypothesis": True,
    },
    "dense parameters": {"amount": 0.7, "at_epochs": [0], "compact": False},
    "masks stay": {"amount": 0.7, "at_epochs": [0], "make_pruning_permanent": False},
}  # fmt: skip


@functools.cache
def stock_training(how, optimizer):
    """Under ModelPruning and Lightning's own strategy, made once for all who compare with it."""
    return fit(as_stock(**HOW[how]), model=seeded(optimizer), gradient_clip_val=1.0)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("strategy", ["auto", "bppsa"])
@pytest.mark.parametrize("how", HOW)
def test_it_is_the_training_of_model_pruning(how, strategy, optimizer):
    stock = stock_training(how, optimizer)
    callback = bl.SparseJacobianPruning(**HOW[how])
    ours = fit(callback, strategy=strategy, model=seeded(optimizer), gradient_clip_val=1.0)
    assert ours.losses == pytest.approx(stock.losses, rel=1e-9)
    assert ours.sparse[-1] == 3 and not stock.sparse[-1]
    assert density(ours) == density(stock) < 1
    x = next(iter(data()))[0].to(ours.net[0].weight.dtype)
    assert relative_error(ours(x), stock(x).double()) < 1e-9
    assert ours.state_dict().keys() == stock.state_dict().keys()
    assert not pruned.sparse_layers(ours) and "sparse" in callback.explanation
    for mine, theirs in in_pairs(ours, stock):
        assert mine.shape == theirs.shape


class Watch(Callback):
    """The share of surviving weights at the start of each step, and the parameters' sizes."""

    def __init__(self):
        self.densities, self.sizes = [], []

    def on_train_batch_start(self, trainer, model, *_):
        masks = [b for n, b in model.named_buffers() if n.endswith("weight_mask")]
        full = sum(m.numel() for m in masks)
        self.densities.append(sum(float(m.sum()) for m in masks) / full if full else 1.0)
        self.sizes.append(
            sum(p.numel() for g in trainer.optimizers[0].param_groups for p in g["params"])
        )


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("permanent", [True, False])
@pytest.mark.parametrize("compact", [True, False])
def test_a_resumed_run_goes_on_as_if_never_interrupted(tmp_path, compact, permanent, optimizer):
    how = {"amount": 0.7, "at_epochs": [0], "parameter_names": ["weight"]}
    how |= {"compact": compact, "make_pruning_permanent": permanent}

    def keeping():
        return ModelCheckpoint(tmp_path, save_last=True, filename="{epoch}", save_top_k=-1)

    whole = fit(bl.SparseJacobianPruning(**how), model=seeded(optimizer))
    fit(bl.SparseJacobianPruning(**how), keeping(), model=seeded(optimizer), max_epochs=2)
    path = tmp_path / "epoch=1.ckpt"
    saved = torch.load(path, weights_only=True)
    dense = saved["state_dict"]["net.3.weight" if permanent else "net.3.weight_orig"]
    assert dense.shape == (12, 8, 3, 3)
    shapes = [p.shape for p in Network().parameters()]
    for state in saved["optimizer_states"][0]["state"].items():
        key = "momentum_buffer" if optimizer == "momentum" else "exp_avg"
        assert state[1][key].shape == shapes[state[0]]
    watch = Watch()
    rest = fit(bl.SparseJacobianPruning(**how), watch, model=seeded(optimizer), ckpt_path=path)
    # Lightning loads a checkpoint before the model is of float64: what is compared is float32.
    assert rest.losses == pytest.approx(whole.losses[6:], rel=1e-6)
    assert watch.densities == pytest.approx([0.3] * 6, abs=1e-3)
    weights = sum(p.numel() for p in Network().parameters())
    assert all(size < 0.4 * weights if compact else size == weights for size in watch.sizes)
    # And once more, from a checkpoint of the resumed run.
    third = fit(bl.SparseJacobianPruning(**how), keeping(), model=seeded(optimizer), ckpt_path=path)
    again = fit(
        bl.SparseJacobianPruning(**how),
        model=seeded(optimizer),
        ckpt_path=tmp_path / "epoch=2.ckpt",
    )
    assert third.losses == pytest.approx(rest.losses, rel=1e-12)
    assert again.losses == pytest.approx(whole.losses[9:], rel=1e-6)
    if permanent:  # a plain model reads it, without the callback
        plain = Network()
        plain.load_state_dict(saved["state_dict"])
        assert density(plain) == pytest.approx(0.3, abs=1e-3)


def test_validation_and_test_read_the_checkpoint(tmp_path):
    callback = bl.SparseJacobianPruning(amount=0.7, at_epochs=[0], make_pruning_permanent=False)
    fit(callback, ModelCheckpoint(tmp_path, filename="kept"), max_epochs=2)
    saved = torch.load(tmp_path / "kept.ckpt", weights_only=True)["state_dict"]
    fresh = bl.SparseJacobianPruning(amount=0.7)
    model = Network()
    with pytest.raises(RuntimeError, match="weight_orig"):
        model.load_state_dict(saved)
    trainer = pl.Trainer(logger=False, accelerator="cpu", enable_progress_bar=False)
    fresh.setup(trainer, model, "test")
    model.load_state_dict(saved)
    fresh.teardown(trainer, model, "test")
    masked = saved["net.3.weight_orig"] * saved["net.3.weight_mask"]
    assert torch.equal(model.net[3].weight, masked.float())


def test_the_lottery_ticket_is_off_unless_asked_for():
    stock = ModelPruning("l1_unstructured")._use_lottery_ticket_hypothesis
    assert stock and not bl.SparseJacobianPruning()._use_lottery_ticket_hypothesis


def test_sparsity_and_plans_are_logged(tmp_path):
    logger = CSVLogger(tmp_path)
    callback = bl.SparseJacobianPruning(amount=0.75, at_epochs=[0, 1], parameter_names=["weight"])
    fit(callback, logger=logger)
    text = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    header = text[0].split(",")
    columns = {name: [row.split(",")[i] for row in text[1:]] for i, name in enumerate(header)}
    sparsities = [float(value) for value in columns["pruning/sparsity"] if value]
    assert sparsities == pytest.approx([0.75, 1 - 0.25**2], abs=2e-3)
    assert {v for v in columns["pruning/sparse_layers"] if v} == {"3.0"}
    assert {v for v in columns["pruning/estimated_seconds"] if v} == {"3.0"}
    assert {v for v in columns["pruning/estimated_seconds_dense"] if v} == {"6.0"}


class Interrupted(Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 5:
            raise ValueError("stop here")


def test_an_error_leaves_the_model_dense():
    torch.manual_seed(0)
    model = Network()
    with pytest.raises(ValueError, match="stop here"):
        fit(bl.SparseJacobianPruning(amount=0.7, at_epochs=[0]), Interrupted(), model=model)
    assert model.net[3].weight_orig.shape == (12, 8, 3, 3) and not pruned.sparse_layers(model)


def test_from_yaml(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "fit.yaml"
    config.write_text(
        """
trainer:
  accelerator: cpu
  max_epochs: 2
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  strategy: {class_path: bppsa_lightning.BPPSAStrategy}
  callbacks:
    - class_path: bppsa_lightning.SparseJacobianPruning
      init_args:
        pruning_fn: ln_structured
        amount: 0.5
        parameter_names: [weight]
        use_global_unstructured: false
        pruning_dim: 0
        pruning_norm: 2
        at_epochs: [0]
"""
    )

    class WithData(Network):
        def __init__(self):
            super().__init__()

        def train_dataloader(self):
            return data()

    cli = LightningCLI(WithData, args=["fit", "--config", str(config)], seed_everything_default=0)
    assert cli.model.sparse[-1] == 3 and density(cli.model) == pytest.approx(0.5, abs=0.02)


def test_only_named_classes_are_pruned():
    how = {"amount": 0.6, "parameter_names": ["weight"], "at_epochs": [0]}
    model = fit(bl.SparseJacobianPruning(module_names=["Linear"], **how))
    assert (model.net[0].weight != 0).all()
    assert (model.net[7].weight == 0).double().mean() == pytest.approx(0.6, abs=0.01)
    with pytest.raises(
        ValueError, match=r"module_names: found \['Conv9d'\], wanted .*: Conv2d, Linear"
    ):
        fit(bl.SparseJacobianPruning(module_names=["Conv9d"], **how))


def test_layers_that_are_pruned_already_are_named():
    """By a fit whose masks stayed: Lightning finds no weights there that it could prune."""
    how = {"parameter_names": ["weight"], "at_epochs": [0], "make_pruning_permanent": False}
    how["module_names"] = ["Conv2d", "Linear"]
    model = fit(bl.SparseJacobianPruning(**how))
    with pytest.raises(ValueError, match=r"'Linear'\], whose weights have masks already"):
        fit(bl.SparseJacobianPruning(**how), model=model)


def test_what_it_refuses():
    with pytest.raises(TypeError, match="at_epochs: found .*1.5.*, wanted a list of integers"):
        bl.SparseJacobianPruning(at_epochs=[1.5])
    with pytest.raises(TypeError, match="at_epochs: found 3, wanted a list of integers"):
        bl.SparseJacobianPruning(at_epochs=3)
    with pytest.raises(TypeError, match="module_names: found 'Conv2d', wanted a list of class"):
        bl.SparseJacobianPruning(module_names="Conv2d")
    with pytest.raises(TypeError, match="amount: found True, wanted a number or a function"):
        bl.SparseJacobianPruning(amount=True)
    with pytest.raises(TypeError, match="compact: found 'no', wanted True or False"):
        bl.SparseJacobianPruning(compact="no")
