"""Trainings that are killed and resumed, for tests/datasets/test_resume.py.

    python resumed_training.py FOLDER DATA OPTIONS [CHECKPOINT]

DATA names a datamodule of `DATA`, OPTIONS are JSON: arguments of the datamodule, the Trainer and
ModelCheckpoint under "data", "trainer" and "checkpoints". Writes into FOLDER: a line of `logged`
for each number that was logged, the checkpoints, and `final_<rank>.pt` with all that was trained.
"""

import json
import pickle
import sys
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn

import bppsa_lightning  # noqa: F401  registers strategies
from bppsa_lightning import datasets

BITSTREAM, DIGITS, CIFAR10, IRMAS = "bitstream", "digits", "cifar10", "irmas"


class Network(pl.LightningModule):
    """A recurrent layer over the rows or steps of a sample, with dropout if asked for."""

    def __init__(self, inputs: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.rnn = nn.GRU(inputs, 8, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, classes)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        steps = x.flatten(1, -2) if x.dim() == 4 else x  # (B, 3, 32, 32): 96 rows
        states, _ = self.rnn(steps)
        return nn.functional.cross_entropy(self.head(self.dropout(states[:, -1])), y)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Lines(Logger):
    """Appends what is logged to a file: step, name, and all bits of the number."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.experiment = None

    name, version = "lines", 0

    def log_hyperparams(self, params: object, *args: object, **kwargs: object) -> None:
        pass

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        with open(self.path, "a") as file:
            for name, value in sorted(metrics.items()):
                file.write(f"{step} {name} {float(value).hex()}\n")


class RandomState(pl.Callback):
    """Keeps torch's global random state in checkpoints: the recipe of docs/datasets.md."""

    def __init__(self) -> None:
        self.state: Tensor | None = None

    def state_dict(self) -> dict[str, Tensor]:
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        self.state = state_dict["torch"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.state is not None:
            torch.set_rng_state(self.state)


def save_all(path: Path, trainer: pl.Trainer) -> None:
    """Writes all that was trained."""
    state = {
        "weights": trainer.lightning_module.state_dict(),
        "optimizer": trainer.optimizers[0].state_dict(),
        "scheduler": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
        "steps": trainer.global_step,
    }
    torch.save(state, path)


def datamodule(name: str, folder: Path, **settings: object) -> tuple[pl.LightningDataModule, int]:
    """The datamodule, its files in a folder that all trainings share, and its features."""
    if name == BITSTREAM:
        return datasets.BitstreamDataModule(folder, **settings), 1
    if name == DIGITS:
        return datasets.DigitsDataModule(**settings), 32
    if name == CIFAR10:
        accept_any_cifar10()
        return datasets.CIFAR10DataModule(folder, **settings), 32
    data = datasets.RenderedIRMASDataModule(folder, features="S", **settings)
    return data, data.num_features


def write_cifar10(folder: Path, images: int) -> None:
    """Random images in the files of CIFAR-10."""
    root = folder / "cifar-10-batches-py"
    root.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        labels = (np.arange(images) % 10).tolist()
        pixels = generator.integers(0, 256, (images, 3072), dtype=np.uint8)
        (root / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels}, protocol=2))
    names = {"label_names": [str(label) for label in range(10)]}
    (root / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))


def accept_any_cifar10() -> None:
    """torchvision knows the checksums of the real files only."""
    from torchvision.datasets import CIFAR10

    CIFAR10.train_list = [[name, None] for name, _ in CIFAR10.train_list]
    CIFAR10.test_list = [[name, None] for name, _ in CIFAR10.test_list]
    CIFAR10.meta = {**CIFAR10.meta, "md5": None}


def train(folder: Path, name: str, options: dict, checkpoint: Path | None = None) -> None:
    """Trains to the end, from the start or from a checkpoint."""
    torch.set_num_threads(1)
    folder.mkdir(exist_ok=True)
    pl.seed_everything(options.get("seed", 0))
    data, inputs = datamodule(name, Path(options["files"]), **options.get("data", {}))
    model = Network(inputs, data.hparams.get("num_classes", 11), options.get("dropout", 0.0))
    saves = ModelCheckpoint(
        folder / "checkpoints", **{"save_top_k": -1, **options.get("checkpoints", {})}
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=Lines(folder / "logged"),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saves, RandomState()],
        **{"devices": 1, "strategy": "bppsa", "max_epochs": 3, **options.get("trainer", {})},
    )
    trainer.fit(model, datamodule=data, ckpt_path=checkpoint)
    save_all(folder / f"final_{trainer.global_rank}.pt", trainer)


if __name__ == "__main__":
    folder, name, options, *checkpoint = sys.argv[1:]
    train(Path(folder), name, json.loads(options), *map(Path, checkpoint))
