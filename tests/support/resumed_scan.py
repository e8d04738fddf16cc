"""A training whose windows learn, through `bl.scan`: to be killed and resumed.

python resumed_scan.py FOLDER EPOCHS [CHECKPOINT]     # writes FOLDER/weights.pt
python resumed_scan.py FOLDER killed                  # in the third epoch; leaves checkpoints
"""

import os
import signal
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bppsa_lightning as bl

T = 600


def leaky(h, x):
    """Reads no parameter."""
    h = 0.6 * h + x
    return h, h


class Remembers(pl.LightningModule):
    """A leaky average, whose decay is learned: windows miss, and warm up for longer and longer."""

    def __init__(self, smoothed=False):
        super().__init__()
        self.smoothed = smoothed
        self.gate, self.of_x = nn.Parameter(torch.ones(6)), nn.Linear(1, 6)
        self.head = nn.Linear(6, 1)

    def step(self, h, x):
        keep = self.gate.sigmoid()
        h = keep * h + (1 - keep) * self.of_x(x).tanh()
        return h, h

    def training_step(self, batch, _):
        x, y = (t.transpose(0, 1) for t in batch)
        if self.smoothed:
            _, x = bl.scan(leaky, x.new_zeros(x.shape[1], 1), x, algorithm="speculative")
        _, h = bl.scan(self.step, x.new_zeros(x.shape[1], 6), x, algorithm="speculative")
        return (self.head(h) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.05)

    def train_dataloader(self):
        x = torch.randn(20, T, 1, generator=torch.Generator().manual_seed(0))
        y = torch.zeros_like(x)
        for t in range(T):
            y[:, t] = 0.95 * y[:, t - 1] + 0.3 * x[:, t] if t else 0.3 * x[:, t]
        return DataLoader(TensorDataset(x, y), 2)


class Killed(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 25:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder, epochs, checkpoint=None):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Remembers(smoothed=True)
    callbacks = [ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)]
    if epochs == "killed":
        callbacks.append(Killed())
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, strategy="bppsa", callbacks=callbacks, logger=False,
        max_epochs=3 if epochs == "killed" else int(epochs), enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, ckpt_path=checkpoint)
    torch.save(model.state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
