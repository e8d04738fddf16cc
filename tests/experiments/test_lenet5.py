"""LeNet-5, its layers scanned over depth: the curve is back-propagation's, and no other path's."""

from pathlib import Path

import lightning.pytorch as pl
import pytest
import yaml

import bppsa_lightning as bl
from bppsa_lightning.datasets import DigitsDataModule
from experiments.compare import summary
from experiments.train import lenet5

STEPS = 4


class Watch(pl.Callback):
    """Keeps each step's loss, and what the strategy scanned in it."""

    def __init__(self):
        self.losses, self.scans = [], []

    def on_train_batch_end(self, trainer, module, outputs, *args):
        self.losses.append(float(outputs["loss"]))
        self.scans += getattr(trainer.strategy, "scans", [])


def trained(model, strategy):
    pl.seed_everything(0, verbose=False)
    watch = Watch()
    trainer = pl.Trainer(
        strategy=strategy, accelerator="cpu", max_steps=STEPS, logger=False, callbacks=[watch],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(model(lr=0.01), DigitsDataModule(batch_size=2))
    return watch, trainer


def test_the_curves_coincide_and_the_whole_network_is_scanned():
    defaults = yaml.safe_load(Path(lenet5.__file__).with_suffix(".yaml").read_text())
    chosen = defaults["trainer"]["strategy"]
    assert chosen["class_path"] == "bppsa_lightning.BPPSAStrategy"
    ours, trainer = trained(lenet5.LeNet5, bl.BPPSAStrategy(**chosen["init_args"]))
    stock, _ = trained(lenet5.LeNet5, "auto")

    assert len(ours.losses) == len(stock.losses) == STEPS and len(set(stock.losses)) == STEPS
    assert ours.losses == pytest.approx(stock.losses, rel=1e-4)
    # Every step: one scan of all twelve layers of the batch of 2, with two levels of products; of
    # the first layer, whose input needs no gradient, no Jacobian goes into one.
    assert [(cell, shape[:2]) for cell, shape, _ in ours.scans] == [("layers", (12, 2))] * STEPS
    assert {(plan.algorithm, plan.levels) for *_, plan in ours.scans} == {("blelloch", 2)}
    explained = trainer.strategy.explanation
    assert "not accelerated" not in explained and "walked" not in explained
    # Of eight pairs five stay factors; ReLU and pooling are multiplied, and two linear layers, one
    # of them by the ReLU between them first.
    assert explained.count("kept in factors") == 5 and explained.count("FLOPs of") == 2 + 2


def test_a_comparison_that_stock_wins_says_so():
    assert summary.in_words(7.66) == "The same training in 7.7x less time"
    assert summary.in_words(0.01234) == "The same training takes 81.0x as long"
    assert [summary.times(r) for r in (12.2, 1, 0.96, 0.5, 0.01234)] == [
        "12.2x", "1.0x", "1.0x", "0.5x", "0.012x",
    ]  # fmt: skip
