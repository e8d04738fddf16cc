"""Delayed against synchronous SGD: what LayerPipe's and PipeDream's old gradients cost in training.

    python -m experiments.paper.layerpipe_convergence

Two tasks, three seeds each, every method from the same weights over the same batches:

digits: VGG-11 without batch norm, half as wide as in the paper, on scikit-learn's digits (32 x 32),
in 4 stages of two convolutions each, the last with the linear layer: delays of 6, 4, 2 and 0
updates under LayerPipe, 3, 2, 1 and 0 under PipeDream.

bitstreams: three RNN layers (tanh, 32 units) over 50 bits, a linear layer on the mean of the
states, in 4 stages; the classes are ten probabilities of a 1 (arXiv:1907.10134, section 5.1).

Trained by `reference.delayed_sgd`, whose weights the executor's are equal to
(tests/layerpipe/test_executor.py). "average" is LayerPipe2's moving average in place of stashed
weights; on the bitstreams, whose layers are no single operations, the backward is that of the layer
at the averaged weights. The pipeline drains at the end of each epoch, as under a Trainer. Writes
layerpipe_convergence.json and .png.
"""

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bppsa_lightning.datasets import DigitsDataModule
from bppsa_lightning.layerpipe.delays import layer_delays
from bppsa_lightning.layerpipe.reference import delayed_sgd
from experiments import recording, style
from experiments.train.pruned_vgg11 import vgg11

METHODS = ("synchronous", "layerpipe", "layerpipe, average", "pipedream")
COLOURS = (style.BLACK, style.BLUE, style.SKY, style.VERMILLION)
Data = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


class States(nn.Module):
    """All states of an RNN layer, (B, T, H): what the next layer reads."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(inputs, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


class Mean(nn.Module):
    """The mean of the states over time, (B, H)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def vgg() -> nn.Sequential:
    """VGG-11 for 32 x 32, without norms, half as wide."""
    return vgg11(norm=False, narrower=2)


def rnns() -> nn.Sequential:
    return nn.Sequential(States(1, 32), States(32, 32), States(32, 32), Mean(), nn.Linear(32, 10))


def digits(seed: int) -> Data:
    """((images, labels) to train, the same to test)."""
    module = DigitsDataModule(seed=seed)
    module.prepare_data()
    module.setup("fit")
    module.setup("test")
    return _whole(module.train_dataloader()), _whole(module.test_dataloader())


def _whole(loader: Any) -> tuple[Tensor, Tensor]:
    images, labels = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(labels)


def bitstreams(seed: int, steps: int = 50, train: int = 6400, test: int = 2000) -> Data:
    """Bits that are 1 with the probability of their class: 0.05 + 0.1 p."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (train + test,), generator=generator)
    chance = (0.05 + 0.1 * labels)[:, None].expand(-1, steps)
    bits = torch.bernoulli(chance, generator=generator)[..., None]
    return (bits[:train], labels[:train]), (bits[train:], labels[train:])


@dataclass(frozen=True)
class Task:
    """What is learned, and how."""

    name: str
    network: Callable[[], nn.Sequential]
    data: Callable[[int], Data]
    cuts: tuple[int, ...]
    lr: float
    batch_size: int
    epochs: int


TASKS = (
    Task("digits", vgg, digits, (6, 11, 16), 0.003, 64, 15),
    Task("bitstreams", rnns, bitstreams, (1, 2, 4), 0.01, 64, 15),
)


def train(task: Task, method: str, seed: int, epochs: int) -> dict[str, list[float]]:
    """The mean loss of each epoch, and the accuracy on the test part after it."""
    torch.manual_seed(seed)
    network = task.network()
    (x, y), test = task.data(seed)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(x), generator=generator) for _ in range(epochs)]
    steps = len(x) // task.batch_size
    schedule = "gpipe" if method == "synchronous" else method.partition(",")[0]
    accuracies: list[float] = []

    def batches() -> Any:
        for order in orders:
            for part in order[: steps * task.batch_size].split(task.batch_size):
                yield x[part], y[part]

    def after(k: int) -> None:
        if (k + 1) % steps == 0:
            accuracies.append(accuracy(network, *test))

    losses = delayed_sgd(
        network, batches(), lambda out, batch: cross_entropy(out, batch[1]),
        torch.optim.SGD(network.parameters(), task.lr, momentum=0.9),
        layer_delays(schedule, task.cuts, len(network)),
        versions="average" if "average" in method else "stash",
        drains=range(0, epochs * steps, steps), after_update=after,
    )  # fmt: skip
    means = [mean(losses[i : i + steps]) for i in range(0, len(losses), steps)]
    return {"loss": means, "accuracy": accuracies}


@torch.no_grad()
def accuracy(network: nn.Sequential, x: Tensor, y: Tensor) -> float:
    return float((copy.deepcopy(network).eval()(x).argmax(1) == y).float().mean())


def final(runs: list[dict[str, list[float]]]) -> dict[str, float]:
    """Accuracy at the end over the seeds."""
    found = [run["accuracy"][-1] for run in runs]
    return {"mean": mean(found), "deviation": stdev(found) if len(found) > 1 else 0.0}


def draw(record: dict[str, Any], path: Path) -> None:
    """Losses and accuracies over the epochs, a column for each task."""
    results = record["results"]
    figure, axes = recording.pyplot().subplots(2, len(results), figsize=(10, 6.5), squeeze=False)
    for column, (name, methods) in enumerate(results.items()):
        for row, quantity in enumerate(("loss", "accuracy")):
            axis = axes[row, column]
            for (method, found), colour in zip(methods.items(), COLOURS, strict=True):
                curves = torch.tensor([run[quantity] for run in found["runs"]])
                epochs = range(1, curves.shape[1] + 1)
                axis.plot(epochs, curves.mean(0), color=colour, label=method)
                low, high = curves.amin(0), curves.amax(0)
                axis.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.set_title(name if row == 0 else "")
            axis.set_ylabel("training loss" if row == 0 else "test accuracy")
            axis.set_xlabel("epoch" if row else "")
    axes[0, 0].legend(frameon=False)
    figure.suptitle("Delayed against synchronous SGD, mean and range of the seeds")
    figure.tight_layout()
    recording.save_figure(figure, path, record["environment"])


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: 3)")
    parser.add_argument("--epochs", type=int, help="default: 15")
    names = [task.name for task in TASKS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="TASK")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    results: dict[str, Any] = {}
    settings = {}
    for task in TASKS:
        if task.name not in asked.only:
            continue
        epochs = asked.epochs or task.epochs
        settings[task.name] = {
            "cuts": task.cuts, "lr": task.lr, "momentum": 0.9, "batch_size": task.batch_size,
            "epochs": epochs, "seeds": asked.seeds,
        }  # fmt: skip
        results[task.name] = {}
        for method in METHODS:
            runs = [train(task, method, seed, epochs) for seed in range(asked.seeds)]
            found = final(runs)
            results[task.name][method] = {"final_accuracy": found, "runs": runs}
            print(
                f"{task.name}, {method}: accuracy {found['mean']:.3f} ± {found['deviation']:.3f}, "
                f"loss {mean(run['loss'][-1] for run in runs):.3f}",
                flush=True,
            )
    path = recording.folder(asked.record) / "layerpipe_convergence.json"
    record = recording.write(path, {"settings": settings, "results": results})
    draw(record, path.with_suffix(".png"))
    print(f"record: {path}, .png")


if __name__ == "__main__":
    main()
