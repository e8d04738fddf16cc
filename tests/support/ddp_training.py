"""Trainings on two processes, for test_ddp.py: each process leaves what it has in the end.

    python ddp_training.py FOLDER

Lightning starts the second process by running this file again. Writes FOLDER/<name>_<rank>.pt.
"""

import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelPruning
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bppsa_lightning as bl
from support.helpers import Classifier, trainer

CLASSES = 3


class Layers(Classifier):
    """An LSTM whose first bias is frozen, a GRU, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(3, 8, batch_first=True)
        self.first.bias_ih_l0.requires_grad_(False)
        self.rnn = nn.GRU(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.first(x)[0])[0].mean(1))

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("val", self.loss(batch), sync_dist=True)

    def on_validation_end(self) -> None:
        self.explanation = bl.explain(self)


class Images(Classifier):
    """Convolutions, with a batch norm whose statistics are each process' own."""

    def __init__(self) -> None:
        super().__init__(lr=0.002)
        del self.rnn, self.head
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, CLASSES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def on_after_backward(self) -> None:
        """Nothing is scanned here."""


class Leaves(pl.Callback):
    """Writes what this process has, while the model is still as it trains."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_end(self, trainer: pl.Trainer, model: Classifier) -> None:
        groups = (group for optimizer in trainer.optimizers for group in optimizer.param_groups)
        torch.save(
            {
                "weights": {name: t.clone() for name, t in model.state_dict().items()},
                "losses": model.losses,
                "steps": trainer.global_step,
                "scans": len(getattr(trainer.strategy, "scans", ())),
                "optimized": sum(p.numel() for group in groups for p in group["params"]),
                "explanation": bl.explain(model),
            },
            self.path.with_name(f"{self.path.name}_{trainer.global_rank}.pt"),
        )


def train(path: Path, strategy: str, model: type, shape: tuple[int, ...], **settings) -> None:
    torch.manual_seed(1)
    data = TensorDataset(
        torch.randn(48, *shape, dtype=torch.float64), torch.randint(0, CLASSES, (48,))
    )
    torch.manual_seed(0)
    settings["callbacks"] = [Leaves(path), *settings.get("callbacks", ())]
    fits, module = trainer(strategy, devices=2, precision="64-true", **settings), model()
    fits.fit(module, DataLoader(data, 4))
    if model is Layers:
        [alone] = fits.validate(module, DataLoader(data, 4), verbose=False)
        alone["explanation"] = module.explanation
        torch.save(alone, path.with_name(f"{path.name}_validated_{fits.global_rank}.pt"))


def pruned_by(callback: type) -> pl.Callback:
    return callback(
        "l1_unstructured", amount=0.97, parameter_names=["weight"],
        apply_pruning=lambda epoch: epoch == 0, use_lottery_ticket_hypothesis=False,
        make_pruning_permanent=False,
    )  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    for strategy in ("ddp", "bppsa_ddp", "bppsa"):
        train(
            folder / f"layers_{strategy}", strategy, Layers, (30, 3),
            max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.5,
        )  # fmt: skip
    for strategy, pruning in (("ddp", ModelPruning), ("bppsa_ddp", bl.SparseJacobianPruning)):
        train(
            folder / f"images_{strategy}", strategy, Images, (3, 8, 8),
            max_epochs=3, callbacks=[pruned_by(pruning)],
        )  # fmt: skip


if __name__ == "__main__":
    main()
