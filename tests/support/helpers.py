"""What several test files share: comparisons, and small Lightning models over an nn.RNN.

T steps, B batch, H state, I input.
"""

import functools

import lightning.pytorch as pl
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bppsa_lightning as bl
from bppsa_lightning._replacement import replacement_of
from support.cases import relative_error

T, B, H, I = 12, 4, 6, 3  # noqa: E741
CLASSES = 3


def assert_close(found, wanted, tolerance):
    """Two dicts of tensors (or None) agree in keys, shapes, dtypes, and values to `tolerance`."""
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        have = found[name]
        if want is None or have is None:
            assert have is want, f"{name}: found {have}, wanted {want}"
            continue
        assert have.shape == want.shape and have.dtype == want.dtype, name
        error = relative_error(have, want.double())
        assert error <= tolerance, f"{name}: relative error {error:.2e}"


def assert_identical(found, wanted):
    """Two dicts of tensors (or None) agree bit for bit."""
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        have = found[name]
        same = have is want if want is None or have is None else torch.equal(have, want)
        assert same, f"{name} differs"


def weights(module):
    """A copy of the state_dict."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def is_attached(module):
    """Whether a recurrent module is in scan mode."""
    return replacement_of(module, bl.Chain) is not None


class Classifier(pl.LightningModule):
    """One nn.RNN and a linear head on the mean of its states; keeps each training loss."""

    def __init__(self, hidden: int = H, lr: float = 0.01, nonlinearity: str = "tanh"):
        super().__init__()
        self.rnn = nn.RNN(I, hidden, batch_first=True, nonlinearity=nonlinearity)
        self.head = nn.Linear(hidden, CLASSES)
        self.lr = lr
        self.losses = []

    def forward(self, x):
        output, hn = self.rnn(x)
        return self.head(output.mean(1) + hn[0])

    def loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.losses.append(loss.item())
        return loss

    def on_after_backward(self):
        if isinstance(self.trainer.strategy, bl.BPPSAStrategy | bl.BPPSADDPStrategy):
            assert self.trainer.strategy.scans, "this backward ran no scan"

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def data(samples=16, batch_size=B):
    """A loader of the same (x (B, T, I), y (B,)) in the same order, whoever asks."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, T, I, generator=generator)
    y = torch.randint(CLASSES, (samples,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size)


def trainer(strategy, **settings):
    """A silent Trainer on the CPU, 4 steps long unless told otherwise."""
    if not {"max_epochs", "max_steps"} & settings.keys():
        settings["max_steps"] = 4
    quiet = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(strategy=strategy, **{**quiet, **settings})


def fit(strategy, model=Classifier, seed=0, loader=None, **settings):
    """Trains a freshly seeded model; returns it (its trainer is at ``model.trainer``)."""
    torch.manual_seed(seed)
    module = model()
    trainer(strategy, **settings).fit(module, data() if loader is None else loader)
    return module


def stock_training(model=Classifier, **settings):
    """The training under Lightning's own strategy, made once for all who compare with it."""
    return _stock_training(model, tuple(sorted(settings.items())))


@functools.cache
def _stock_training(model, settings):
    return fit("auto", model, **dict(settings))


class Memory(Logger):
    """Keeps what is logged as (step, {name: value})."""

    name, version = "memory", 0

    def __init__(self):
        super().__init__()
        self.logged = []

    def log_metrics(self, metrics, step=None):
        self.logged.append((step, metrics))

    def log_hyperparams(self, *args, **kwargs):
        pass

    def timings(self):
        """The logged figures of each step, without the Trainer's own."""
        found = [(step, {n: v for n, v in m.items() if n != "epoch"}) for step, m in self.logged]
        return [(step, metrics) for step, metrics in found if metrics]
