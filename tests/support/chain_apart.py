"""Processes of a chain that read different batches, for test_chain_strategy.py; says what came."""

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import bppsa_lightning as bl
from support.helpers import trainer

DATA = TensorDataset(torch.randn(16, 150, 3, generator=torch.Generator().manual_seed(1)))


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)

    def training_step(self, batch, index):
        return self.rnn(batch[0])[0].square().mean()

    validation_step = test_step = predict_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OfARank(IterableDataset):
    def __iter__(self):
        return (DATA[i] for i in range(dist.get_rank(), len(DATA), dist.get_world_size()))


class OfAllRanks(IterableDataset):
    def __iter__(self):
        return iter(DATA)


def sampled(**kwargs):
    return DataLoader(DATA, 4, sampler=DistributedSampler(DATA, **kwargs))


def main():
    torch.set_num_threads(1)
    fits = trainer(bl.BPPSAChainStrategy(), devices=2, max_epochs=1)
    model = Model()
    fits.fit(model, DataLoader(DATA, 4, shuffle=True))
    rank = fits.global_rank
    ways = {
        "a sampler": ("fit", sampled()),
        "a sampler of the chains": ("fit", sampled(num_replicas=1, rank=0)),
        "a part of each rank": ("validate", DataLoader(OfARank(), 4)),
        "all of each rank": ("validate", DataLoader(OfAllRanks(), 4)),
        "values": ("test", DataLoader(TensorDataset(DATA.tensors[0] + rank), 4)),
        "sizes": ("predict", DataLoader(DATA, 4 + rank)),
    }
    for name, (method, loader) in ways.items():
        again = trainer(bl.BPPSAChainStrategy(), devices=2, max_epochs=1)
        try:
            getattr(again, method)(model, loader)
            said = "ran"
        except RuntimeError as error:
            said = str(error)[:60]
        print(f"{name}: {said}", flush=True)


if __name__ == "__main__":
    main()
