"""A pipeline of two processes, one of which may be killed, for tests/layerpipe/test_killed.py.

    python layerpipe_killed.py FOLDER EPOCH RANK

Goes on from FOLDER/last.ckpt if there is one. Kills rank RANK in epoch EPOCH (-1: never), and
writes FOLDER/weights.pt at the end.
"""

import os
import signal
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import bppsa_lightning as bl
from support.layerpipe_training import Model, loader, trainer


class Kills(pl.Callback):
    """SIGKILL, in the middle of an epoch."""

    def __init__(self, epoch: int, rank: int) -> None:
        self.epoch, self.rank = epoch, rank

    def on_train_batch_start(self, trainer, module, batch, index) -> None:
        if (trainer.current_epoch, index, trainer.global_rank) == (self.epoch, 30, self.rank):
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    torch.set_num_threads(1)
    folder, epoch, rank = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    keeps = ModelCheckpoint(folder, filename="last", enable_version_counter=False)
    train = trainer(
        bl.LayerPipeStrategy(cuts=(3,)), 2, max_epochs=2, enable_checkpointing=True,
        callbacks=[keeps, Kills(epoch, rank)],
    )  # fmt: skip
    model = Model(optimizer="adam")
    last = folder / "last.ckpt"
    train.fit(model, loader(), ckpt_path=last if last.exists() else None)
    if train.is_global_zero:
        torch.save(model.state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    main()
