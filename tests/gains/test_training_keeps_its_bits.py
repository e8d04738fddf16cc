"""A training is the same, bit for bit, with steps of it timed against stock and without."""

import random

import numpy as np
import pytest
import torch
from support.helpers import B, Classifier, H, I, T, assert_identical, fit, weights
from support.strategy_models import Closure, Manual
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, TensorDataset

import bppsa_lightning as bl

# On a busy machine such small layers may take any time.
pytestmark = pytest.mark.filterwarnings("ignore:BPPSA is slower")
SOON = {"stock_steps": 5, "stock_share": 1e6}


class Watched(nn.LSTM):
    """Overrides forward, counts its calls, and changes what it is given."""

    def forward(self, x, hx=None):
        self.seen = getattr(self, "seen", 0) + 1
        output, last = super().forward(x + random.random(), hx)
        return output * 2, last


class Recurrent(Classifier):
    """Dropout, hooks, packed sequences, a layer called twice, a subclass, frozen weights."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(I, H, 2, batch_first=True, dropout=0.5, bidirectional=True)
        self.watched = Watched(2 * H, H, batch_first=True)
        self.twice = nn.RNN(H, H, batch_first=True)
        self.twice.weight_ih_l0.requires_grad_(False)
        self.norm = nn.BatchNorm1d(H)
        self.hooks = {"forward": 0, "gradient": 0, "accumulated": 0}
        self.rnn.register_forward_hook(self.count("forward"))
        self.rnn.weight_hh_l0.register_hook(self.count("gradient"))
        self.rnn.weight_hh_l1.register_post_accumulate_grad_hook(self.count("accumulated"))

    def count(self, name):
        def hook(*_):
            self.hooks[name] += 1

        return hook

    def forward(self, x):
        lengths = torch.tensor([T, T - 2, T, T - 5])
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        x, (h, _) = self.watched(nn.functional.dropout(x, 0.3))
        x, last = self.twice(x, h)
        x, _ = self.twice(x, last)
        return self.head(self.norm(x[:, -1]))


class Pruned(Classifier):
    """A stack with a batch norm and dropout, compact after its first epoch."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.Identity()
        self.head = nn.Sequential(
            nn.Unflatten(1, (1, T * I)), nn.Unflatten(2, (T, I)), nn.Upsample(scale_factor=4),
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(inplace=True), nn.Dropout(0.2),
            nn.Flatten(), nn.Linear(64 * 16 * T * I, 3),
        )  # fmt: skip

    def forward(self, x):
        return self.head(x.flatten(1))

    def on_after_backward(self):
        """No scan here."""


def training(model, monitored, **settings):
    callbacks = [bl.ChainMonitor(**(SOON if monitored else {"stock_steps": 0}))]
    if model is Pruned:
        callbacks.append(
            bl.SparseJacobianPruning(
                amount=0.99, use_global_unstructured=False, parameter_names=["weight"],
                module_names=["Conv2d"], at_epochs=[0], make_pruning_permanent=False,
            )
        )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(48, T, I, generator=generator), torch.arange(48) % 3
    loader = DataLoader(TensorDataset(x, y), batch_size=B, shuffle=True)
    random.seed(0)
    np.random.seed(0)
    module = fit("bppsa", model, loader=loader, callbacks=callbacks, max_epochs=3, **settings)
    return module, callbacks[0]


def state(module):
    optimizer = module.trainer.optimizers[0].state_dict()["state"]
    kept = {f"{i}/{k}": v for i, own in optimizer.items() for k, v in own.items()}
    kept = {name: value for name, value in kept.items() if isinstance(value, torch.Tensor)}
    return weights(module) | kept | {"random": torch.get_rng_state()}


@pytest.mark.parametrize("model", [Classifier, Recurrent, Pruned, Manual, Closure])
def test_the_same_bits(model):
    (plain, _), (timed, monitor) = training(model, False), training(model, True)
    assert len(monitor.comparison.steps) == 5
    assert timed.losses == plain.losses and len(plain.losses) >= 36
    assert_identical(state(timed), state(plain))
    assert random.random() == (random.seed(0), training(model, False), random.random())[2]
    assert np.random.get_state()[2] == 624
    if model is Recurrent:
        assert timed.hooks == plain.hooks and timed.watched.seen == plain.watched.seen == 36
        assert set(monitor.comparison.layers) == {"rnn", "watched", "twice"}
    if model is Pruned:
        assert set(monitor.comparison.layers) == {"head"}


@pytest.mark.parametrize(
    "settings",
    [{"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.1}, {"precision": "bf16-mixed"}],
)
def test_the_same_bits_with(settings):
    (plain, _), (timed, monitor) = (training(Classifier, m, **settings) for m in (False, True))
    assert len(monitor.comparison.steps) == 5
    assert_identical(state(timed), state(plain))
