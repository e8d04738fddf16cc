"""What processes of chains log together, for test_chain_metrics.py.

    python chain_metrics.py FOLDER PROCESSES CHAIN

as one of PROCESSES; writes FOLDER/<rank>.pt. One process alone is PyTorch's.
"""

import copy
import sys
from datetime import timedelta
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import SumMetric

import bppsa_lightning as bl
from support.helpers import trainer

SAMPLES, BATCH = 24, 2


class Model(pl.LightningModule):
    """Counts its samples in every way there is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(1, 1)
        self.called, self.updated = SumMetric(), SumMetric()
        self.each = SumMetric(dist_sync_on_step=True)
        self.left: dict[str, object] = {}

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = self.layer(batch).pow(2).mean()
        self.log("train_n", float(len(batch)), on_epoch=True, reduce_fx="sum", sync_dist=True)
        return loss

    def validation_step(self, batch: Tensor, index: int) -> None:
        self.called(len(batch))
        self.updated.update(len(batch))
        self.left["each"] = float(self.each(len(batch)))
        self.log("called", self.called)
        self.log("updated", self.updated)
        self.log("n", float(len(batch)), reduce_fx="sum", sync_dist=True)
        self.log("mean", batch.mean(), sync_dist=True)
        self.left["gathered"] = list(self.all_gather(torch.ones(3)).shape)

    def on_validation_epoch_end(self) -> None:
        self.left["copied"] = float(copy.deepcopy(self.updated).compute())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    torch.set_num_threads(1)
    folder, processes, chain = Path(sys.argv[1]), *map(int, sys.argv[2:])
    strategy = bl.BPPSAChainStrategy(chain=chain, timeout=timedelta(seconds=77))
    samples = torch.arange(SAMPLES, dtype=torch.float64)[:, None]
    model = Model()
    fits = trainer(
        strategy if processes > 1 else "auto", devices=processes, precision="64-true", max_epochs=1
    )
    fits.fit(model, DataLoader(samples, BATCH), DataLoader(samples, BATCH))
    left = model.left | {name: float(value) for name, value in fits.callback_metrics.items()}
    if processes > 1:
        vote = fits.is_global_zero
        left["votes"] = [fits.strategy.reduce_boolean_decision(vote, all) for all in (True, False)]
        backends = [
            strategy.mesh.get_group(name)._get_backend(torch.device("cpu"))
            for name in ("data", "chain")
        ]
        left["timeouts"] = [backend.options._timeout.total_seconds() for backend in backends]
        available = SumMetric().distributed_available_fn
        left["restored"] = all(
            metric.dist_sync_fn is None and metric.distributed_available_fn is available
            for metric in (model.called, model.updated, model.each)
        )
    torch.save(left, folder / f"{fits.global_rank}.pt")


if __name__ == "__main__":
    main()
