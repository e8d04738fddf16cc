"""Checkpoints: resumed under either strategy, with nothing of this package in them."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    ModelCheckpoint,
)
from support.helpers import (
    Classifier,
    assert_close,
    assert_identical,
    data,
    fit,
    stock_training,
    trainer,
    weights,
)
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


@pytest.mark.parametrize("way", ["strategy", "callback"])
def test_a_resumed_training_with_windows_has_the_same_bits(way, tmp_path):
    """What windows have learned is in the checkpoint: else a new look would decide otherwise."""

    def train(epochs, **more):
        torch.manual_seed(0)
        model, callbacks = Recalls(), more.pop("callbacks", [])
        attached = bl.BPPSAStrategy("speculative"), []
        if way == "callback":
            attached = "auto", [bl.Attach("speculative")]
        fitted = trainer(
            attached[0], max_epochs=epochs, callbacks=callbacks + attached[1],
            enable_checkpointing=bool(callbacks),
        )  # fmt: skip
        fitted.fit(model, **more)
        owner = fitted.strategy if way == "strategy" else attached[1][0]
        assert " windows of " in owner.explanation
        return weights(model)

    uninterrupted = train(3)
    save = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    train(1, callbacks=[save])
    path = tmp_path / "epoch=0.ckpt"
    torch.load(path, weights_only=True)
    assert_identical(train(3, ckpt_path=path), uninterrupted)
