"""Checkpoints: resumed under either strategy, with nothing of this package but
what windows have learned in them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from support import resumed_scan
from support.helpers import (
    Classifier,
    H,
    I,
    assert_close,
    assert_identical,
    data,
    fit,
    stock_training,
    trainer,
    weights,
)
from support.resumed_scan import Remembers
from support.strategy_models import STOCK
from torch import nn

import bppsa_lightning as bl


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


class TakesALayer(Classifier):
    """A layer among its hyperparameters, of which Lightning only advises against."""

    def __init__(self, rnn=None):
        super().__init__()
        self.save_hyperparameters()
        self.rnn = rnn or nn.RNN(I, H, batch_first=True)
        self.hparams.rnn = self.rnn


@pytest.mark.filterwarnings("ignore:Attribute 'rnn' is an instance of:UserWarning")
@pytest.mark.parametrize("how", ["strategy", "callback", "written later"])
def test_layers_among_hyperparameters_are_saved_as_they_were(how, tmp_path):
    class Saves(pl.Callback):
        def on_train_epoch_end(self, trainer, model):
            trainer.save_checkpoint(tmp_path / "within.ckpt")
            assert "forward" in model.rnn.__dict__  # attached, as before

    plugins = [AsyncCheckpointIO()] if how == "written later" else []
    strategy, attach = (STOCK, [bl.Attach()]) if how == "callback" else ("bppsa", [])
    callbacks = [*attach, Saves()]
    fit(strategy, TakesALayer, max_epochs=1, callbacks=callbacks, plugins=plugins)
    assert b"bppsa_lightning" not in (tmp_path / "within.ckpt").read_bytes()
    saved = torch.load(tmp_path / "within.ckpt", weights_only=False)
    kept, state = saved["hyper_parameters"]["rnn"], saved["state_dict"]
    assert type(kept) is nn.RNN and "forward" not in kept.__dict__
    pair = kept.weight_hh_l0, state["rnn.weight_hh_l0"]
    places = {w.untyped_storage().data_ptr() for w in pair}
    assert len(places) == 1 + len(plugins)  # one, unless the plugin copies tensors


def test_load_from_checkpoint(tmp_path):
    model = fit("bppsa")
    model.trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = Classifier.load_from_checkpoint(tmp_path / "model.ckpt")
    assert_identical(weights(loaded), weights(model))


class Recalls(pl.LightningModule):
    """A GRU over sequences that are long enough for windows."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.GRU(1, 12), nn.Linear(12, 1)

    def training_step(self, batch, _):
        y, _ = self.layer(batch[0].transpose(0, 1))
        return (self.head(y) - batch[0].transpose(0, 1).cumsum(0).tanh()).square().mean()

    def configure_optimizers(self):
        # (With a much smaller rate a new look would decide the same, and nothing be tested.)
        return torch.optim.Adam(self.parameters(), 0.05)

    def train_dataloader(self):
        x = torch.randn(10, 1200, 1, generator=torch.Generator().manual_seed(0))
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 2)


def train(model, way, epochs, **more):
    """A fresh training with windows; returns its weights, and what became of it in words."""
    torch.manual_seed(0)
    model, callbacks = model(), more.pop("callbacks", [])
    attached = bl.BPPSAStrategy("speculative"), []
    if way == "callback":
        attached = "auto", [bl.Attach("speculative")]
    fitted = trainer(
        attached[0], max_epochs=epochs, callbacks=callbacks + attached[1],
        enable_checkpointing=bool(callbacks),
    )  # fmt: skip
    fitted.fit(model, **more)
    owner = fitted.strategy if way == "strategy" else attached[1][0]
    return weights(model), owner.explanation


@pytest.mark.parametrize("model", [Recalls, Remembers])
@pytest.mark.parametrize("way", ["strategy", "callback"])
def test_a_resumed_training_with_windows_has_the_same_bits(way, model, tmp_path):
    """What windows have learned is in the checkpoint: else a new look would decide otherwise."""
    uninterrupted, explanation = train(model, way, 3)
    assert " windows of " in explanation
    save = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    train(model, way, 2, callbacks=[save])
    path = tmp_path / "epoch=1.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    assert_identical(train(model, way, 3, ckpt_path=path)[0], uninterrupted)
    if model is Remembers:  # (windows of Recalls, walked where they lie, may have the same bits)
        held = checkpoint if way == "strategy" else checkpoint["callbacks"]
        del held["bppsa_lightning" if way == "strategy" else "Attach"]
        torch.save(checkpoint, path)
        forgetful, _ = train(model, way, 3, ckpt_path=path)
        assert not all(torch.equal(forgetful[name], w) for name, w in uninterrupted.items())


@pytest.mark.slow
def test_a_training_with_scans_that_is_killed_goes_on_in_another_process(tmp_path):
    script = Path(resumed_scan.__file__)

    def run(name, *arguments, status=0):
        folder = tmp_path / name
        command = [sys.executable, str(script), str(folder), *map(str, arguments)]
        folder.mkdir()
        ran = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
        assert ran.returncode == status
        return folder

    whole = run("whole", 3)
    killed = run("killed", "killed", status=-signal.SIGKILL) / "epoch=1.ckpt"
    learned = torch.load(killed, weights_only=True)["bppsa_lightning"]
    assert [name.split(" ")[0] for name in learned] == ["bl.scan(leaky", "bl.scan(Remembers.step"]
    resumed = run("resumed", 3, killed)
    found, wanted = (torch.load(f / "weights.pt", weights_only=True) for f in (resumed, whole))
    assert_identical(found, wanted)
