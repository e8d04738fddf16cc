"""A chain of processes that may be killed, for tests/ranks/test_killed.py.

    python chain_killed.py FOLDER PROCESSES

Goes on from FOLDER/last.ckpt if there is one; each process touches FOLDER/began_<rank> when its
training begins. Rank 0 writes FOLDER/weights.pt at the end.
"""

import sys
from datetime import timedelta
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import bppsa_lightning as bl
from support.chain_training import Model, loaders
from support.helpers import trainer


class Begins(pl.Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_start(self, trainer, module) -> None:
        (self.folder / f"began_{trainer.global_rank}").touch()


def main() -> None:
    torch.set_num_threads(1)
    folder, processes = Path(sys.argv[1]), int(sys.argv[2])
    keeps = ModelCheckpoint(folder, filename="last", enable_version_counter=False)
    train = trainer(
        bl.BPPSAChainStrategy("speculative", timeout=timedelta(seconds=20)), devices=processes,
        max_epochs=8, enable_checkpointing=True,
        callbacks=[keeps, Begins(folder)],
    )  # fmt: skip
    model = Model()
    for module in model.modules():  # whose random numbers no checkpoint holds
        if hasattr(module, "dropout"):
            module.dropout = 0.0
    model.head[0].p = 0.0
    x, target = loaders()[0].dataset.tensors
    data = DataLoader(TensorDataset(x.float(), target), 4)
    last = folder / "last.ckpt"
    train.fit(model, data, ckpt_path=last if last.exists() else None)
    if train.is_global_zero:
        torch.save(model.state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    main()
