"""Trainings of a chain of processes, for test_chain_strategy.py, and the same in one process.

    python chain_training.py FOLDER TRAINING DEVICES [CHAIN [NODES]]

Writes FOLDER/<training>_<devices>_<rank>.pt: what a process has in the end. TRAINING is one of
`TRAININGS`, with "_one" behind it for PyTorch in one process.
"""

import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import bppsa_lightning as bl
from support.helpers import trainer

CLASSES = 3


class Model(pl.LightningModule):
    """Two kinds of layers over time, with dropout between layers and behind them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.LSTM(3, 8, batch_first=True)
        self.first.bias_ih_l0.requires_grad_(False)
        self.rnn = nn.GRU(8, 6, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(12, CLASSES))
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, target = batch
        loss = cross_entropy(self.head(self.rnn(self.first(x)[0])[0].mean(1)), target)
        self.losses.append(float(loss))
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, target = batch
        self.log("val", cross_entropy(self.head(self.rnn(self.first(x)[0])[0].mean(1)), target))

    def on_validation_end(self) -> None:
        self.explanation = bl.explain(self)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def loaders(T: int = 150, batch: int = 4) -> list[DataLoader]:
    data = torch.Generator().manual_seed(1)
    x = torch.randn(52, T, 3, dtype=torch.float64, generator=data)
    sets = TensorDataset(x, torch.randint(0, CLASSES, (52,), generator=data))
    return [DataLoader(sets, batch, shuffle=True), DataLoader(sets, 26)]


SETTINGS = {
    "plain": {},
    "accumulated": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
    "composed": {"algorithm": "blelloch"},
    "passed_on": {"algorithm": "linear"},
    "meets": {"algorithm": "speculative", "T": 500, "batch": 13},
}


def main() -> None:
    torch.set_num_threads(1)
    folder, training, devices, *chain = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    name, _, one = training.partition("_one")
    settings = dict(SETTINGS[name])
    algorithm = settings.pop("algorithm", "auto")
    data = loaders(**{key: settings.pop(key) for key in ("T", "batch") if key in settings})
    strategy = bl.BPPSAChainStrategy(algorithm, chain=chain[0] if chain else None)
    nodes = chain[1] if len(chain) > 1 else 1
    if one:
        strategy, devices, nodes = "auto", 1, 1
    model = Model()
    fits = trainer(
        strategy, devices=devices, num_nodes=nodes, precision="64-true", max_epochs=4, **settings
    )
    torch.manual_seed(7)
    fits.fit(model, *data)
    left = {
        "losses": model.losses,
        "steps": fits.global_step,
        "val": float(fits.callback_metrics["val"]),
        "explanation": getattr(fits.strategy, "explanation", ""),
    }
    [alone] = fits.validate(model, data[1], verbose=False)
    torch.save(
        left
        | {
            "weights": {name: t.clone() for name, t in model.state_dict().items()},
            "val_alone": alone["val"],
            "explanation_alone": model.explanation,
        },
        folder / f"{training}_{devices}_{fits.global_rank}.pt",
    )


if __name__ == "__main__":
    main()
