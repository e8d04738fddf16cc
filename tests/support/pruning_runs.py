"""A small network that is pruned under a Trainer, and Lightning's own pruning to judge it by."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, ModelPruning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bppsa_lightning import pruned


class Network(pl.LightningModule):
    """A small VGG; keeps its losses and, of each step, how many layers ran sparse."""

    def __init__(self, lr: float = 0.05, optimizer: str = "momentum"):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(48, 4),
        )  # fmt: skip
        self.lr, self.kind = lr, optimizer
        self.losses, self.sparse = [], []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.losses.append(loss.item())
        found = pruned.sparse_layers(self).values()
        self.sparse.append(sum(layer.reason is None and layer.calls > 0 for layer in found))
        return loss

    def configure_optimizers(self):
        if self.kind == "adam":
            return torch.optim.Adam(self.parameters(), self.lr / 10)
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9, weight_decay=1e-3)


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(48, 1, 8, 8, generator=generator)
    return DataLoader(TensorDataset(x, torch.arange(48) % 4), batch_size=16)


def fit(*callbacks, strategy="auto", model=None, ckpt_path=None, **settings):
    """Trains a freshly seeded network for 4 epochs of 3 steps, in float64."""
    torch.manual_seed(0)
    model = Network() if model is None else model
    quiet = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 4,
        "precision": "64-true",
    }
    trainer = pl.Trainer(strategy=strategy, callbacks=list(callbacks), **{**quiet, **settings})
    trainer.fit(model, data(), ckpt_path=ckpt_path)
    return model


def in_pairs(model, other):
    """The parameters of one name; stock's pruning leaves them in another order."""
    mine, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    assert mine.keys() == theirs.keys()
    return [(mine[name], theirs[name]) for name in mine]


def density(model):
    prunable = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return sum(int((w != 0).sum()) for w in prunable) / sum(w.numel() for w in prunable)


class StockPruning(ModelPruning):
    """Judges weights as they are: masked ones are otherwise those of the last forward.

    For the lottery ticket, it copies first values, which Lightning's lets the training move.
    """

    def apply_pruning(self, amount):
        for module, _ in self._parameters_to_prune:
            for hook in module._forward_pre_hooks.values():
                hook(module, ())
        super().apply_pruning(amount)

    @staticmethod
    def _copy_param(new, old, name):
        getattr(new, f"{name}_orig").data = getattr(old, name).data.double()


def as_stock(**settings):
    """ModelPruning with the same meaning."""
    settings = {"use_lottery_ticket_hypothesis": False, "pruning_fn": "l1_unstructured", **settings}
    if (epochs := settings.pop("at_epochs", None)) is not None:
        settings["apply_pruning"] = lambda epoch: epoch in epochs
    settings.pop("compact", None)
    return StockPruning(**settings)


def seeded(optimizer):
    torch.manual_seed(0)
    return Network(optimizer=optimizer)
