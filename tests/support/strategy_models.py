"""Small Lightning models that two test files or more train under Trainer(strategy="bppsa").

The judge is always the same training under Lightning's own strategy, STOCK.
"""

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

import bppsa_lightning as bl
from support.helpers import (
    Classifier,
    H,
    assert_close,
    fit,
    stock_training,
    weights,
)

STOCK = "auto"
ALGORITHMS = ("auto", "linear", "chunked", "blelloch")


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


class SeveralBackwards(Manual):
    """A graph kept for a second backward of the same loss."""

    def training_step(self, batch, batch_idx):
        loss = Classifier.training_step(self, batch, batch_idx)
        self.optimizers().zero_grad()
        self.manual_backward(loss, retain_graph=True)
        self.manual_backward(2 * loss)
        self.optimizers().step()


class OwnGRU(nn.GRU):
    """A layer with a forward of the user's own on the instance, which keeps PyTorch's path."""

    def __init__(self, *sizes, **settings):
        super().__init__(*sizes, **settings)
        self.forward = super().forward


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


class Closure(Classifier):
    """An optimizer that asks for several backwards a step."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=4)
