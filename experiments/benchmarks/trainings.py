"""Training steps of twelve usual models, each training in a process of its own.

    python -m experiments.benchmarks.trainings                    # all, in pairs
    python -m experiments.benchmarks.trainings --models text audio
    python -m experiments.benchmarks.trainings one text bppsa     # one, in this process: JSON

Layers that are timed again and again in one process find their memory as they left it; a training
does not, so that what it waits for there is seen here alone. Each process trains a Trainer with
strategy="bppsa" or with stock PyTorch, on one batch over and over, with Adam; a step is all that
lies between the ends of two. "faults" are the pages that the system had to hand out in a step,
"loss" is that of the last one. Writes trainings_cpu.json.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset

import bppsa_lightning as bl  # noqa: F401 (registers the strategy)
from experiments import recording
from experiments.benchmarks.recurrent_training import quietly

UNCOUNTED = 10  # steps at the beginning
STRATEGIES = {"stock": "auto", "bppsa": "bppsa"}
HEAD = ("model", "layers", "(B, T)", "PyTorch", "bppsa", "times as fast", "pages a step")


@dataclass(frozen=True)
class Model:
    """A recurrent network between an embedding, or features, and a head."""

    cell: str
    hidden: int
    B: int
    T: int
    features: int  # of a step, or of a word
    classes: int
    layers: int = 1
    bidirectional: bool = False
    dropout: float = 0.0  # between the layers and behind the last one
    words: int = 0  # the input is words, of so many
    every_step: bool = False  # has a target; otherwise the last one
    lengths: int = 0  # the shortest sample's, of a PackedSequence

    def __str__(self) -> str:
        kind = f"{'bidirectional ' * self.bidirectional}{self.cell} {self.hidden}"
        return kind if self.layers == 1 else f"{self.layers} x {kind}"


MODELS = {
    "text": Model("LSTM", 128, 32, 200, 128, 2, words=20_000, lengths=20),
    "characters": Model("LSTM", 256, 32, 128, 64, 65, 2, dropout=0.2, words=65, every_step=True),
    "tags": Model("GRU", 64, 16, 300, 64, 10, 2, True, 0.3, every_step=True),
    "speech": Model("LSTM", 256, 8, 200, 80, 10, 2, True, 0.3, every_step=True),
    "audio": Model("GRU", 128, 16, 300, 64, 11, bidirectional=True),
    "forecasts": Model("LSTM", 64, 128, 96, 7, 24, 2),
    "small forecasts": Model("GRU", 32, 32, 96, 7, 24),
    "rollouts": Model("LSTM", 64, 8, 64, 32, 6, every_step=True),
    "bit streams": Model("RNN", 20, 16, 1000, 1, 10),
    "long series": Model("LSTM", 32, 4, 5000, 4, 2),
    "long outputs": Model("LSTM", 64, 16, 1000, 64, 10, every_step=True),
    "large": Model("LSTM", 512, 16, 100, 512, 10, 2, every_step=True),
}


class Network(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        if model.words:
            self.embed = nn.Embedding(model.words, model.features)
        self.recurrent = getattr(nn, model.cell)(
            model.features, model.hidden, model.layers, dropout=model.dropout,
            bidirectional=model.bidirectional, batch_first=True,
        )  # fmt: skip
        self.drop = nn.Dropout(model.dropout)
        self.head = nn.Linear(model.hidden * (1 + model.bidirectional), model.classes)

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        x = self.embed(x) if self.model.words else x
        if lengths is not None:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            outputs, _ = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
            return self.head(outputs.sum(1) / lengths[:, None])
        outputs, _ = self.recurrent(x)
        return self.head(self.drop(outputs if self.model.every_step else outputs[:, -1]))


Batch = tuple[Tensor, Tensor | None, Tensor]


def batch_of(model: Model) -> Batch:
    """Inputs, lengths and targets."""
    sequences = model.B, model.T
    if model.words:
        x = torch.randint(model.words, sequences)
    else:
        x = torch.randn(*sequences, model.features)
    lengths = torch.randint(model.lengths, model.T + 1, (model.B,)) if model.lengths else None
    if lengths is not None:
        lengths[0] = model.T
    targets = sequences if model.every_step else sequences[:1]
    return x, lengths, torch.randint(model.classes, targets)


class Training(pl.LightningModule):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = Network(model)

    def training_step(self, batch: Batch, _: int) -> Tensor:
        x, lengths, target = batch
        self.loss = nn.functional.cross_entropy(
            self.network(x, lengths).flatten(0, -2), target.flatten()
        )
        return self.loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


class Repeated(Dataset[Batch]):
    def __init__(self, batch: Batch, times: int) -> None:
        self.batch, self.times = batch, times

    def __len__(self) -> int:
        return self.times

    def __getitem__(self, index: int) -> Batch:
        return self.batch


class Clock(pl.Callback):
    def __init__(self) -> None:
        self.ends: list[float] = []
        self.faults: list[int] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        self.ends.append(time.perf_counter())


def train(model: Model, strategy: str, steps: int, threads: int) -> dict[str, float]:
    """One training in this process: a step's seconds and page faults, the last one's loss."""
    torch.set_num_threads(threads)
    pl.seed_everything(0, verbose=False)
    training, clock = Training(model), Clock()
    data = DataLoader(Repeated(batch_of(model), UNCOUNTED + steps), batch_size=None)
    with quietly():
        trainer = pl.Trainer(
            strategy=STRATEGIES[strategy], accelerator="cpu", max_epochs=1, callbacks=[clock],
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(training, data)
    ends, faults = clock.ends[UNCOUNTED - 1 :], clock.faults[UNCOUNTED - 1 :]
    return {
        "seconds": median(b - a for a, b in zip(ends, ends[1:], strict=False)),
        "faults": (faults[-1] - faults[0]) / steps,
        "loss": training.loss.item(),
    }


def compare(name: str, rounds: int, steps: int, threads: int) -> dict[str, Any]:
    """Pairs of processes, one after the other."""
    found: dict[str, list[dict[str, float]]] = {strategy: [] for strategy in STRATEGIES}
    for _ in range(rounds):
        for strategy, each in found.items():
            command = [sys.executable, "-m", __spec__.name, "--steps", str(steps)]
            command += ["--threads", str(threads), "one", name, strategy]
            ran = subprocess.run(command, check=True, capture_output=True, text=True)
            each.append(json.loads(ran.stdout.splitlines()[-1]))
    model = MODELS[name]
    row: dict[str, Any] = {"model": name, "layers": str(model), "B": model.B, "T": model.T}
    for strategy, each in found.items():
        row[strategy] = {key: median(run[key] for run in each) for key in each[0]}
    pairs = zip(*found.values(), strict=True)
    return row | {"ratio": median(stock["seconds"] / ours["seconds"] for stock, ours in pairs)}


def line(row: dict[str, Any]) -> list[str]:
    stock, ours = row["stock"], row["bppsa"]
    return [
        row["model"], row["layers"], f"({row['B']}, {row['T']:,})",
        *(f"{way['seconds'] * 1e3:.1f} ms" for way in (stock, ours)),
        f"{row['ratio']:.1f}x", f"{stock['faults']:,.0f} / {ours['faults']:,.0f}",
    ]  # fmt: skip


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3, help="processes of each (default 3)")
    parser.add_argument("--steps", type=int, default=40, help="counted of each (default 40)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    recording.add_record_argument(parser)
    one = parser.add_subparsers().add_parser("one", help="train one in this process")
    one.add_argument("model", choices=list(MODELS))
    one.add_argument("strategy", choices=list(STRATEGIES))
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    if "strategy" in asked:
        found = train(MODELS[asked.model], asked.strategy, asked.steps, asked.threads)
        return print(json.dumps(found))
    rows: list[dict[str, Any]] = []
    path = recording.folder(asked.record) / "trainings_cpu.json"
    for name in asked.models:
        rows.append(compare(name, asked.rounds, asked.steps, asked.threads))
        print(recording.markdown(HEAD, map(line, rows[-1:])).splitlines()[-1], flush=True)
        counted = {"threads": asked.threads, "uncounted": UNCOUNTED, "steps": asked.steps}
        recording.write(path, counted | {"rows": rows})
    print(f"record: {path}")


if __name__ == "__main__":
    main()
