"""What `windows_trained` trains: small recurrent networks, and sequences of any length for them.

T steps, B samples. A task draws the sequences that it trains on, and others like them, of any
length, that no training step sees.

- characters: the next character of Python source. The text is this Python's own standard library,
  so it differs a little from version to version.
- adding: the sum of two marked numbers, one in each half of the sequence (Hochreiter and
  Schmidhuber, 1997). What the network reads first it needs at the end.
- copy: three symbols, a silence, then the symbols again. A longer sequence is a longer silence.
- bitstream: the paper's task (`train.bitstream_rnn`).
- frames: the paper's GRU (`train.irmas_gru`) on frames that are made up: 38 coefficients that move
  together in a way of their class, scaled over their excerpt like the MFCCs of music.
- forecast: the next 24 hours of a made-up hourly series of 10,000 steps with a daily and a weekly
  season. The encoder is ours, of no package of forecasters.
"""

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import pi
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bppsa_lightning.datasets import BitstreamDataModule
from bppsa_lightning.datasets.bitstream import BitstreamDataset
from experiments.train.bitstream_rnn import BitstreamRNN
from experiments.train.irmas_gru import IRMASGRU

Batch = tuple[Tensor, Tensor]  # x (B, T) or (B, T, I), y

# Modules of the standard library that Python 3.10 has and later ones kept; the last is held out.
SOURCES = (
    "_pydecimal", "argparse", "ast", "configparser", "difflib", "doctest", "enum", "functools",
    "inspect", "ipaddress", "mailbox", "optparse", "pdb", "pickle", "smtplib", "statistics",
    "subprocess", "tarfile", "threading", "turtle", "typing",
)  # fmt: skip
SYMBOLS = 128  # of ASCII

COPIED = 3  # symbols to remember, each one of eight; two more say "silence" and "now"
FRAMES, INSTRUMENTS = 38, 11
HISTORY, HORIZON = 10_000, 24


@dataclass(frozen=True)
class Task:
    """What is learned, and how.

    Attributes:
        name: as `--only` has it.
        network: makes an untrained network: x to what `loss` compares with y.
        draw: (T, B, generator, held out) -> x, y.
        loss: of the network's output and y.
        T, B, steps, lr: of the training, by Adam.
        algorithm: with which it is trained.
    """

    name: str
    network: Callable[[], nn.Module]
    draw: Callable[[int, int, Generator, bool], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]
    T: int
    B: int
    steps: int = 1500
    lr: float = 2e-3
    algorithm: str = "speculative"


class Reader(nn.Module):
    """A recurrent layer, and a linear read-out of every state or of the last one.

    Args:
        symbols: how many there are, if the input is symbols and not numbers.
        every: whether every state is read out.
        memory: for how many steps units remember at first, from 1 to so many (Tallec and Ollivier,
            2018, https://arxiv.org/abs/1804.11188); 0 for PyTorch's own beginning.
    """

    def __init__(
        self, cell: str, I: int, H: int, outputs: int, symbols: int = 0, every: bool = True,
        memory: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed = nn.Embedding(symbols, I) if symbols else nn.Identity()
        self.rnn = getattr(nn, cell)(I, H, batch_first=True)
        self.read = nn.Linear(H, outputs)
        self.every = every
        if memory:
            self._remember(memory)

    def _remember(self, steps: int) -> None:
        """The second gate, an LSTM's f and a GRU's z, is how much of the state stays."""
        H, bias = self.rnn.hidden_size, self.rnn.bias_ih_l0.data
        stays = torch.empty(H).uniform_(1, steps).log()
        self.rnn.bias_hh_l0.data[: 2 * H] = 0
        bias[H : 2 * H] = stays
        if isinstance(self.rnn, nn.LSTM):
            bias[:H] = -stays

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, outputs), or (B, outputs) of the last state."""
        states = self.rnn(self.embed(x))[0]
        return self.read(states if self.every else states[:, -1])


def symbols_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Cross entropy of every step, but for those whose y is -100."""
    return F.cross_entropy(logits.flatten(0, -2), y.flatten())


@cache
def text() -> tuple[Tensor, Tensor]:
    """Characters to train on, and those held out; what is not ASCII is a question mark."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [(folder / f"{name}.py").read_text("utf-8") for name in SOURCES]
    codes = [torch.tensor(list(file.encode("ascii", "replace"))) for file in files]
    return torch.cat(codes[:-1]), codes[-1]


def characters(T: int, B: int, generator: Generator, held_out: bool) -> Batch:
    source = text()[held_out]
    starts = torch.randint(len(source) - T, (B, 1), generator=generator)
    pieces = source[starts + torch.arange(T + 1)]
    return pieces[:, :-1], pieces[:, 1:]


def adding(T: int, B: int, generator: Generator, held_out: bool) -> Batch:
    numbers, marks = torch.rand(B, T, generator=generator), torch.zeros(B, T)
    first = torch.randint(T // 2, (B, 1), generator=generator)
    second = torch.randint(T // 2, T, (B, 1), generator=generator)
    marks.scatter_(1, torch.cat([first, second], 1), 1.0)
    return torch.stack([numbers, marks], -1), (numbers * marks).sum(1, keepdim=True)


def copying(T: int, B: int, generator: Generator, held_out: bool) -> Batch:
    symbols = torch.randint(8, (B, COPIED), generator=generator)
    x, y = torch.full((B, T), 8), torch.full((B, T), -100)
    x[:, :COPIED], x[:, -COPIED:], y[:, -COPIED:] = symbols, 9, symbols
    return x, y


@cache
def _streams(T: int, count: int, split: str) -> BitstreamDataset:
    data = BitstreamDataModule(
        steps=T, num_samples=count, num_val_samples=count, num_test_samples=10
    )
    data.prepare_data()
    data.setup()
    dataset = (data.val_dataloader() if split == "val" else data.train_dataloader()).dataset
    assert isinstance(dataset, BitstreamDataset)
    return dataset


def bitstreams(T: int, B: int, generator: Generator, held_out: bool) -> Batch:
    streams = _streams(T, 160 if held_out else 3200, "val" if held_out else "train")
    return streams.__getitems__(torch.randint(len(streams), (B,), generator=generator).tolist())


def frames(T: int, B: int, generator: Generator, held_out: bool) -> Batch:
    """Notes of some frames each, in eight hidden movements that a class mixes in its own way."""
    y = torch.randint(INSTRUMENTS, (B,), generator=generator)
    mixes = torch.randn(INSTRUMENTS, 8, FRAMES, generator=Generator().manual_seed(0))
    onsets = torch.rand(B, T, 1, generator=generator) < 0.1
    note = onsets.cumsum(1).expand(-1, -1, 8)
    levels = torch.randn(B, T + 1, 8, generator=generator).gather(1, note)
    x = levels @ mixes[y] + torch.randn(B, T, FRAMES, generator=generator)
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), y


@cache
def series() -> Tensor:
    """Hourly values, (N,): a daily and a weekly season, and noise that lasts some hours."""
    generator, hours = Generator().manual_seed(0), torch.arange(HISTORY + 30_000)
    noise = torch.randn(len(hours), generator=generator)
    lasting = F.conv1d(noise.view(1, 1, -1), (0.8 ** torch.arange(24.0)).view(1, 1, -1))
    day, week = 2 * pi * hours / 24, 2 * pi * hours / 168
    seasons = day.sin() + 0.4 * (2 * day).cos() + 0.5 * week.sin()
    return seasons + 0.3 * F.pad(lasting[0, 0], (23, 0))


def forecast(T: int, B: int, generator: Generator, held_out: bool) -> Batch:
    values = series()[HISTORY:] if held_out else series()[:HISTORY]
    starts = torch.randint(len(values) - T - HORIZON, (B, 1), generator=generator)
    pieces = values[starts + torch.arange(T + HORIZON)]
    return pieces[:, :T, None], pieces[:, 1:].unfold(1, HORIZON, 1)


def characters_task(cell: str) -> Task:
    return Task(
        f"characters_{cell.lower()}", lambda: Reader(cell, 64, 128, SYMBOLS, SYMBOLS), characters,
        symbols_loss, T=256, B=16, algorithm="linear",
    )  # fmt: skip


def adding_task(cell: str) -> Task:
    T, memory = 200, 200 if cell == "LSTM" else 0  # a GRU learns it from PyTorch's own beginning
    network = lambda: Reader(cell, 2, 64, 1, every=False, memory=memory)  # noqa: E731
    return Task(f"adding_{cell.lower()}", network, adding, F.mse_loss, T, B=32)


def copy_task(cell: str) -> Task:
    T = 100 + 2 * COPIED
    network = lambda: Reader(cell, 16, 64, 8, symbols=10, memory=T)  # noqa: E731
    return Task(f"copy_{cell.lower()}", network, copying, symbols_loss, T, B=32)


TASKS = (
    *(characters_task(cell) for cell in ("RNN", "GRU", "LSTM")),
    *(adding_task(cell) for cell in ("GRU", "LSTM")),
    *(copy_task(cell) for cell in ("GRU", "LSTM")),
    Task("bitstream_rnn", BitstreamRNN, bitstreams, F.cross_entropy, 1000, 16, 600, lr=1e-4),
    Task("frames_gru", IRMASGRU, frames, F.cross_entropy, T=259, B=16, steps=600),
    Task(
        "forecast_lstm", lambda: Reader("LSTM", 1, 32, HORIZON), forecast, F.mse_loss, T=2048, B=1
    ),
)
