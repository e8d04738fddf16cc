"""Trainings that are killed at random moments and resumed from their newest checkpoint.

    python tests/support/resumed.py DATA KILLS [SEED] [PROCESSES]

DATA is "bitstream", "digits", "cifar10" or "irmas". Trains once without interruption; then KILLS
times with a SIGKILL at a random moment and once more from the newest checkpoint, often one from
the middle of an epoch. Prints how many of them end with the same bits: weights, optimizer,
schedule, and each loss from the checkpoint on. With PROCESSES, each training is that many ranks.
"""

import io
import logging
import multiprocessing
import os
import pickle
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import bppsa_lightning as bl  # registers the strategy
from bppsa_lightning.datasets import (
    BitstreamDataModule,
    CIFAR10DataModule,
    DigitsDataModule,
    IRMASDataModule,
    irmas_cache,
)

FORK = multiprocessing.get_context("fork")


def bitstream(folder):
    return BitstreamDataModule(folder, steps=40, batch_size=8, num_samples=150, num_val_samples=16)


def digits(folder):
    return DigitsDataModule(batch_size=128, seed=3, augment=True)


def cifar10(folder):
    """Files as they are on CIFAR-10's disk, of random pixels, whose MD5 sums nobody knows."""
    import torchvision

    sets = torchvision.datasets
    root = folder / sets.CIFAR10.base_folder
    if not root.exists():
        root.mkdir(parents=True)
        generator = np.random.default_rng(0)
        for name, _ in sets.CIFAR10.train_list + sets.CIFAR10.test_list:
            pixels = generator.integers(0, 256, (100, 3072), dtype=np.uint8)
            batch = {"data": pixels, "labels": [i % 10 for i in range(100)]}
            (root / name).write_bytes(pickle.dumps(batch))
        meta = {"label_names": [str(i) for i in range(10)]}
        (root / sets.CIFAR10.meta["filename"]).write_bytes(pickle.dumps(meta))
    sets.CIFAR10._check_integrity = lambda self: True
    sets.cifar.check_integrity = lambda *arguments: True
    return CIFAR10DataModule(folder, batch_size=32, augment=True, num_workers=1)


def irmas(folder):
    from support.irmas_corpus import write_corpus
    from support.irmas_data import fake_extract, write_fake

    if not any(folder.glob("*/*.wav")):
        write_corpus(folder, recordings=6, excerpts=2, write=write_fake)
    irmas_cache.extract = fake_extract
    return IRMASDataModule(folder, features="L", batch_size=8, val_split=0.2, test_split=0.2)


class Recurrent(pl.LightningModule):
    """A GRU over whatever a sample is, a schedule for each step, and each step's loss."""

    def __init__(self, features, classes):
        super().__init__()
        self.rnn = nn.GRU(features, 8, batch_first=True)
        self.head = nn.Linear(8, classes)
        self.features = features
        self.losses = {}

    def loss(self, batch):
        x, y = batch
        x = x.reshape(len(x), -1, self.features)[:, :60]
        return nn.functional.cross_entropy(self.head(self.rnn(x)[0].mean(1)), y)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.losses[self.trainer.fit_loop.epoch_loop.total_batch_idx] = loss.item()
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        return {
            "optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}
        }  # fmt: skip


BUILD = {"bitstream": bitstream, "digits": digits, "cifar10": cifar10, "irmas": irmas}
SHAPES = {"bitstream": (1, 10), "digits": (32, 10), "cifar10": (32, 10), "irmas": (12, 11)}


def train(name, data_folder, folder, processes, seed):
    """Trains from the newest checkpoint in a folder, if there is one; leaves the end there."""
    pl.seed_everything(seed, verbose=False)  # another one after a kill: nothing may depend on it
    torch.manual_seed(0)
    model = Recurrent(*SHAPES[name])
    torch.manual_seed(seed)
    written = sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[-1]))
    trainer = pl.Trainer(
        strategy="bppsa" if processes == 1 else "bppsa_ddp_fork", devices=processes,
        accelerator="cpu", max_epochs=3, accumulate_grad_batches=2, val_check_interval=0.5,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, callbacks=[
            ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1),
            Leaves(folder),
        ],
    )  # fmt: skip
    trainer.fit(
        model, BUILD[name](data_folder), ckpt_path=written[-1] if written else None,
        weights_only=False,
    )  # fmt: skip


class Leaves(pl.Callback):
    """Writes the end of a training, beside and then renamed."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_end(self, trainer, model):
        if trainer.global_rank:
            return
        end = {
            "weights": model.state_dict(),
            "optimizer": trainer.optimizers[0].state_dict(),
            "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
            "steps": trainer.global_step,
            "losses": model.losses,
        }
        torch.save(end, self.folder / "end.tmp")
        os.replace(self.folder / "end.tmp", self.folder / "end.pt")


def started(*arguments):
    """A process of its own group, so that its ranks die with it."""
    process = FORK.Process(target=_run, args=arguments)
    process.start()
    return process


def _run(*arguments):
    os.setpgid(0, 0)
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        train(*arguments)


def bits(value):
    buffer = io.BytesIO()
    pickle.dump(_plain(value), buffer)
    return buffer.getvalue()


def _plain(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return [(str(key), _plain(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return repr(value)


def ends_alike(end, wanted):
    """Whether a resumed training ended as the other one; its losses from where it was resumed."""
    same = all(bits(end[k]) == bits(wanted[k]) for k in ("weights", "optimizer", "schedule"))
    losses = all(wanted["losses"][step] == loss for step, loss in end["losses"].items())
    return same and losses and end["steps"] == wanted["steps"]


def main():
    name, kills = sys.argv[1], int(sys.argv[2])
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    processes = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    assert bl.__version__
    with tempfile.TemporaryDirectory() as top:
        top = Path(top)
        data = top / "data"
        data.mkdir()
        BUILD[name](data).prepare_data()
        start = time.perf_counter()
        (top / "whole").mkdir()
        whole = started(name, data, top / "whole", processes, 7)
        whole.join()
        seconds = time.perf_counter() - start
        wanted = torch.load(top / "whole" / "end.pt", weights_only=False)
        alike = middle = 0
        for kill in range(kills):
            folder = top / str(kill)
            folder.mkdir()
            run = started(name, data, folder, processes, 7)
            time.sleep(rng.uniform(0.05, 1.0) * seconds)
            try:
                os.killpg(run.pid, signal.SIGKILL)
            except ProcessLookupError:
                run.kill()
            run.join()
            newest = max([int(p.stem.split("=")[-1]) for p in folder.glob("*.ckpt")], default=0)
            middle += 0 < newest < wanted["steps"] and newest % (wanted["steps"] // 3) != 0
            (folder / "end.pt").unlink(missing_ok=True)
            run = started(name, data, folder, processes, 7 if newest == 0 else 1000 + kill)
            run.join()
            end = torch.load(folder / "end.pt", weights_only=False)
            alike += ends_alike(end, wanted)
        print(f"{alike} of {kills} ends are bit-equal; {middle} resumed in the middle of an epoch")
        sys.exit(alike != kills)


if __name__ == "__main__":
    main()
