"""Two processes whose parameters are sharded (FSDP2), with `bl.Attach` and without: the losses.

    python sharded_training.py FOLDER

The other process is started in the same way. Writes FOLDER/<rank>.pt.
"""

import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import bppsa_lightning as bl


class Sharded(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 6, batch_first=True)
        self.head = nn.Linear(6, 3)
        self.losses = []

    def configure_model(self):
        mesh = self.device_mesh["data_parallel"]
        for part in (self.rnn, self.head, self):
            fully_shard(part, mesh=mesh)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.head(self.rnn(x)[0].mean(1)), y)
        self.losses.append(loss.item())
        return loss

    def test_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.head(self.rnn(x)[0].mean(1)), y)
        self.log("loss", loss, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


def data():
    x, y = torch.randn(64, 20, 3), torch.randint(3, (64,))
    return DataLoader(TensorDataset(x, y), 8)


def trainer_with(*callbacks):
    return pl.Trainer(
        accelerator="cpu", devices=2, max_epochs=2, callbacks=list(callbacks), logger=False,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip


def train(*callbacks):
    torch.manual_seed(0)
    model, trainer = Sharded(), trainer_with(*callbacks)
    trainer.fit(model, data())
    return model, trainer


def tested(*callbacks):
    """The loss of an untrained one."""
    torch.manual_seed(0)
    model = Sharded()
    [found] = trainer_with(*callbacks).test(model, data(), verbose=False)
    return found["loss"]


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    calls = []

    class Watched(bl.Attach):
        def on_train_end(self, *args):
            calls.extend((chain.calls, chain.fallback_calls) for chain in self.chains)

    stock, _ = train()
    model, trainer = train(attach := Watched("linear"))
    of_test = bl.Attach("linear")
    torch.save(
        {
            "stock": stock.losses, "losses": model.losses, "calls": calls,
            "explanation": attach.explanation, "attached": "forward" in model.rnn.__dict__,
            "sharded": type(model.rnn).__name__,
            "tested": (tested(), tested(of_test)), "explanation_of_test": of_test.explanation,
        },
        Path(sys.argv[1]) / f"{trainer.global_rank}.pt",
    )  # fmt: skip


if __name__ == "__main__":
    main()
