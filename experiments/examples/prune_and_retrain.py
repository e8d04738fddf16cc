"""Prunes 95 % of a CNN's weights, and retrains the rest at the cost of the rest.

    python -m experiments.examples.prune_and_retrain   # 1 min

In PyTorch a pruned layer costs what it did before: zeros are multiplied, and have gradients. Here
Lightning's callback ModelPruning is replaced by its subclass bl.SparseJacobianPruning; all else is
as it was. Digits of scikit-learn, brought to 3 x 32 x 32.

The picture: the losses over time, and what a step takes before pruning and after.
"""

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelPruning
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bppsa_lightning as bl
from bppsa_lightning.datasets import DigitsDataModule
from experiments import style
from experiments.examples import side_by_side
from experiments.examples.side_by_side import NAMES, Run, Watch

AMOUNT, BATCH = 0.95, 32


def convolution(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]


class SmallCNN(pl.LightningModule):
    """Four convolutions and a read-out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *convolution(3, 32), nn.MaxPool2d(2), *convolution(32, 64), nn.MaxPool2d(2),
            *convolution(64, 128), *convolution(128, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(128, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Scores (B, 10) of images (B, 3, 32, 32)."""
        return self.layers(x)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, digit = batch
        return cross_entropy(self(x), digit)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def pruning(ours: bool, model: SmallCNN) -> ModelPruning:
    """At the end of the first epoch, each convolution loses the smallest of its weights."""
    kind = bl.SparseJacobianPruning if ours else ModelPruning  # this is what one copies
    return kind(
        "l1_unstructured",
        parameters_to_prune=[(m, "weight") for m in model.layers if isinstance(m, nn.Conv2d)],
        amount=AMOUNT,
        use_global_unstructured=False,  # of each: the smallest of all could empty a layer
        apply_pruning=lambda epoch: epoch == 0,
        use_lottery_ticket_hypothesis=False,
    )


def train(data: DigitsDataModule, strategy: str, epochs: int, batches: int | None) -> Run:
    torch.manual_seed(0)
    model, watch = SmallCNN(), Watch()
    trainer = pl.Trainer(
        strategy=strategy, max_epochs=epochs, limit_train_batches=batches,
        callbacks=[pruning(strategy == "bppsa", model), *watch.callbacks], **side_by_side.QUIET,
    )  # fmt: skip
    trainer.fit(model, train_dataloaders=data.train_dataloader())
    steps = {part: getattr(watch.timer, part) for part in watch.timer.medians()}
    dense = len(watch.losses) // epochs
    after = {part: median(seconds[dense:]) for part, seconds in steps.items()}
    return Run(
        watch.losses, watch.timer.step, after | {"dense": median(steps["step"][:dense])}, model
    )


@torch.no_grad()
def right(model: SmallCNN, data: DigitsDataModule) -> float:
    """The share of new digits that are recognised."""
    model.eval()
    found = [(model(x).argmax(-1) == digit) for x, digit in data.val_dataloader()]
    return float(torch.cat(found).float().mean())


def draw(record: dict[str, Any], path: Path) -> None:
    with side_by_side.picture(2, "An epoch dense, pruned, retrained", record, path) as axes:
        smooth = max(1, len(record["stock"]["losses"]) // 40)
        side_by_side.draw_losses(axes[0], record, smooth)
        draw_before_and_after(axes[1], record)


def draw_before_and_after(axes: Any, found: dict[str, Any]) -> None:
    """A step before pruning, and after."""
    for place, name in enumerate(NAMES):
        for shift, part, colour in ((-0.2, "dense", style.GREY), (0.2, "step", style.OURS)):
            ms = found[name]["seconds"][part] * 1e3
            label = {"dense": "all weights", "step": f"{1 - AMOUNT:.0%} of them"}[part]
            axes.bar(place + shift, ms, 0.4, color=colour, label=None if place else label)
            axes.text(place + shift, ms, f"{ms:.1f}", ha="center", va="bottom")
    axes.set_xticks(range(len(NAMES)), list(NAMES.values()))
    axes.set(
        ylabel="milliseconds a step",
        title=f"{style.times(found['speed_up']['step'])} as fast a step",
    )
    axes.margins(y=0.2)
    axes.legend(loc="upper right", ncols=2)


def parser() -> argparse.ArgumentParser:
    return side_by_side.parser(__doc__)


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    epochs, batches, rounds = (2, 5, 1) if asked.quick else (4, None, 2)
    data = DigitsDataModule(batch_size=BATCH)
    data.prepare_data()
    data.setup("fit")
    with side_by_side.quiet():
        runs = side_by_side.in_turns(
            lambda strategy: train(data, strategy, epochs, batches), rounds
        )
    found = side_by_side.summary(runs)
    model = runs["bppsa"][-1].model
    weights = torch.cat([m.weight.flatten() for m in model.layers if isinstance(m, nn.Conv2d)])
    found["weights_left"] = float((weights != 0).float().mean())
    found["right"] = {name: right(rs[-1].model, data) for name, rs in runs.items()}
    shares = [f"{found['right'][name]:.1%}" for name in NAMES]
    print(f"Retraining with {found['weights_left']:.1%} of the weights, {BATCH} images a step\n")
    print(side_by_side.table(found, {"new digits right": (*shares, "")}))
    side_by_side.keep("prune_and_retrain", found, draw, asked)


if __name__ == "__main__":
    main()
