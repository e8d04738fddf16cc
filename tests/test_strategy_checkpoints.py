"""Checkpoints: resumed under either strategy, with nothing of this package in them."""

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
