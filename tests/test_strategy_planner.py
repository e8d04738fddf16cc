"""Trainings with the planner as users get it: what it leaves to PyTorch trains as before."""

from support.helpers import (
    Classifier,
    T,
    assert_identical,
    weights,
)
from support.strategy_models import assert_same_training, both

import bppsa_lightning as bl


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
