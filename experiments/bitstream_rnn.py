"""The paper's bitstream task (arXiv:1907.10134, section 4.1): which coin made this bit stream?

A vanilla RNN reads T bits, x_t ~ Bernoulli(0.05 + 0.1 p), and tells the class p from its last
state. A LightningCLI application; its defaults stand in bitstream_rnn.yaml beside it:

    python experiments/bitstream_rnn.py fit
    python experiments/bitstream_rnn.py fit --trainer.strategy auto      # stock PyTorch
    python experiments/bitstream_rnn.py fit --ckpt_path last             # resume
    python experiments/bitstream_rnn.py validate --ckpt_path last
    python experiments/bitstream_rnn.py fit --help
"""

import os
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LightningCLI
from torch import Tensor, nn
from torch.nn import functional as F

import bppsa_lightning  # noqa: F401  (registers the strategy "bppsa")
from bppsa_lightning.datasets import BitstreamDataModule


class BitstreamRNN(pl.LightningModule):
    """A one-layer RNN and a linear read-out of its last state.

    Nothing in it knows of the scan: the strategy is the Trainer's business.

    Args:
        hidden_size: state size H.
        num_classes: classes p.
        nonlinearity: "tanh" or "relu".
        lr: learning rate of Adam.
    """

    def __init__(
        self,
        hidden_size: int = 20,
        num_classes: int = 10,
        nonlinearity: str = "tanh",
        lr: float = 1e-5,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.rnn = nn.RNN(1, hidden_size, nonlinearity=nonlinearity, batch_first=True)
        self.classify = nn.Linear(hidden_size, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, num_classes) of bit streams x (B, T, 1)."""
        _, last = self.rnn(x)
        return self.classify(last[0])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._loss(batch, "train", prog_bar=True)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._loss(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._loss(batch, "test")

    def _loss(self, batch: tuple[Tensor, Tensor], stage: str, prog_bar: bool = False) -> Tensor:
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        accuracy = (logits.argmax(-1) == y).float().mean()
        self.log(f"{stage}/loss", loss, prog_bar=prog_bar, batch_size=len(y))
        self.log(f"{stage}/accuracy", accuracy, prog_bar=stage == "val", batch_size=len(y))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main() -> None:
    # Logged are configuration and metrics, nothing of the machine's user or its repositories.
    os.environ.setdefault("WANDB_DISABLE_GIT", "true")
    os.environ.setdefault("WANDB_X_DISABLE_META", "true")
    # Lightning 2.6 under torch 2.14; nothing a user could act on.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    defaults = {"default_config_files": [str(Path(__file__).with_suffix(".yaml"))]}
    LightningCLI(
        BitstreamRNN,
        BitstreamDataModule,
        seed_everything_default=0,
        parser_kwargs={command: defaults for command in ("fit", "validate", "test", "predict")},
        save_config_kwargs={"overwrite": True},
        auto_configure_optimizers=False,
    )


if __name__ == "__main__":
    main()
