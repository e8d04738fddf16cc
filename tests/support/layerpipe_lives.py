"""What a Trainer does around a training, in a pipeline and in one process, for tests/layerpipe.

    python layerpipe_lives.py FOLDER stock|pipe

With "pipe" the other process is started in the same way. Writes FOLDER/<case>_<stock|rank>.pt.
"""

import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
)
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, random_split
from torchmetrics import MeanMetric

import bppsa_lightning as bl
from support.layerpipe_training import CLASSES, Model, data, perceptron, trainer

TIMEOUT = timedelta(seconds=290)
RANK = int(os.environ.get("LOCAL_RANK", 0))


class Lived(Model):
    """With float inputs of the weights' type, and a learning rate that a finder may set."""

    lr = 0.05

    def __init__(self, layers=perceptron) -> None:
        super().__init__(layers)
        self.rates: list[float] = []
        self.timeouts: list[timedelta] = []

    def on_train_start(self) -> None:
        links = getattr(self.trainer.strategy, "_links", None)
        groups = [] if links is None else links._groups.values()
        backends = [group._get_backend(torch.device("cpu")) for group in groups]
        self.timeouts = [backend.options._timeout for backend in backends]

    def on_train_batch_start(self, *_) -> None:
        self.rates.append(self.optimizers().param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(data(count=60), batch_size=6)


class Falling(Lived):
    """Its learning rate falls where the loss of a step does not."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        falls = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0, threshold=0.2)
        config = {"scheduler": falls, "monitor": "train_loss", "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": config}


class OneCycle(Lived):
    """Asks how many steps there will be."""

    def configure_optimizers(self) -> Any:
        optimizer, steps = super().configure_optimizers(), self.trainer.estimated_stepping_batches
        cycle = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


class Mixed(Lived):
    """Draws on the device which samples are mixed."""

    def on_after_batch_transfer(self, batch, _) -> Any:
        x, y = batch
        return (x + x[torch.randperm(len(x))]) / 2, y


class MixedBefore(Lived):
    """The same before it is on its device."""

    def on_before_batch_transfer(self, batch, _) -> Any:
        x, y = batch
        return (x + x[torch.randperm(len(x))]) / 2, y


class Computed(Lived):
    """A metric that is computed, and logged, at the end of an epoch; the learning rate obeys it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()

    def training_step(self, batch, index) -> Tensor:
        loss = super().training_step(batch, index)
        self.mean(-loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("mean", self.mean.compute())
        self.mean.reset()

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        falls = lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, threshold=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": falls, "monitor": "mean"}}


class Noisy(Lived):
    """A validation whose result is another in each process."""

    def val_dataloader(self) -> DataLoader:
        return self.train_dataloader()

    def validation_step(self, batch, index) -> None:
        self.log("noise", torch.rand(()) + RANK)


class Split(Lived):
    """Data that each process has split by itself."""

    def train_dataloader(self) -> DataLoader:
        part, _ = random_split(data(count=60), [30, 30])
        return DataLoader(part, batch_size=6)


class Keeps(Lived):
    """What a training step keeps is only where it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def training_step(self, batch, index) -> Tensor:
        loss = super().training_step(batch, index)
        self.kept.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        torch.stack(self.kept)


class Twice(Lived):
    """An optimizer that asks for two gradients in a step."""

    def configure_optimizers(self) -> Any:
        class Sharp(torch.optim.SGD):
            def step(self, closure=None):
                closure()
                return super().step(closure)

        return Sharp(self.parameters(), 0.1)


class Frozen(Lived):
    """Nothing to train in the first stage."""

    def __init__(self) -> None:
        super().__init__()
        self.net[:4].requires_grad_(False)


class Penalised(Lived):
    """A loss with a term of the first layer's weights."""

    def loss(self, batch) -> Tensor:
        return super().loss(batch) + self.net[0].weight.square().sum()


class Skips(Lived):
    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        return None if index == 2 else loss


class Over(nn.Module):
    """Some module over time, whose results lie in memory with time before samples."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.gru = nn.GRU(*sizes)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x.transpose(0, 1))[0].transpose(0, 1)


class Repeat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, None].expand(-1, 5, -1)


class Last(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


def recurrent() -> nn.Sequential:
    layers = nn.Linear(4, 4), Repeat(), Over(4, 8), Over(8, 4), Last(), nn.Linear(4, CLASSES)
    return nn.Sequential(*layers)


def lending() -> nn.Sequential:
    """Layers of which the plan lends some tasks to the other process, if nothing forbids it."""
    layers = nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, CLASSES)
    return nn.Sequential(*layers)


@dataclass
class Case:
    """A training: its schedule, its model, callbacks, settings of the Trainer."""

    schedule: str
    model: Any = Lived
    callbacks: Any = list
    settings: dict[str, Any] = field(default_factory=dict)


def prunes() -> list[pl.Callback]:
    """Over all layers at once, after each epoch."""
    return [ModelPruning("l1_unstructured", amount=0.3, parameter_names=["weight"])]


CASES = {
    "averaged": Case("gpipe", Lived, lambda: [EMAWeightAveraging(decay=0.5)]),
    "falling": Case("gpipe", Falling),
    "one_cycle": Case("gpipe", OneCycle),
    "frozen_zero_bubble": Case("zero_bubble", Frozen),
    "recurrent": Case("gpipe", lambda: Lived(recurrent)),
    "recurrent_zero_bubble": Case("zero_bubble", lambda: Lived(recurrent)),
    "pruned": Case("gpipe", Lived, prunes, {"precision": "32-true", "max_epochs": 3}),
    "mixed": Case("gpipe", Mixed),
    "mixed_before": Case("gpipe", MixedBefore),
    "computed": Case("gpipe", Computed, settings={"max_epochs": 4}),
    "noisy": Case(
        "gpipe",
        Noisy,
        lambda: [ModelCheckpoint(Path(sys.argv[1]) / "best", "{step}-{noise:.6f}", "noise")],
        {"enable_checkpointing": True, "val_check_interval": 0.5},
    ),
    "searched": Case("layerpipe", Lived, lambda: [LearningRateFinder(num_training_steps=9)]),
    "lent_searched": Case(
        "layerpipe", lambda: Lived(lending), lambda: [LearningRateFinder(num_training_steps=9)]
    ),
    "lent_falling": Case("layerpipe", lambda: Falling(lending)),
}
# They end the process group: last, and one a run.
FAILING = {
    "penalised": Case("gpipe", Penalised),
    "penalised_zero_bubble": Case("zero_bubble", Penalised),
    "skips": Case("gpipe", Skips),
    "split": Case("layerpipe", Split),
    "keeps": Case("gpipe", Keeps),
    "twice": Case("pipedream", Twice),
}


def run(folder: Path, name: str, case: Case, stock: bool) -> None:
    model = case.model()
    strategy: Any = "auto"
    if not stock:
        cuts = None if name.startswith("lent") else (len(model.net) // 2,)
        strategy = bl.LayerPipeStrategy(case.schedule, cuts=cuts, timeout=TIMEOUT)
    settings = {"max_epochs": 2, "callbacks": case.callbacks(), **case.settings}
    train = trainer(strategy, 1 if stock else 2, **settings)
    torch.manual_seed(7 + RANK)
    left: dict[str, Any] = {"error": ""}
    try:
        train.fit(model)
    except (RuntimeError, ValueError) as error:
        left["error"] = str(error)
    left["timeouts"] = [timeout == TIMEOUT for timeout in model.timeouts]
    left |= {"weights": model.state_dict(), "rates": model.rates, "steps": train.global_step}
    left["best"] = getattr(train.checkpoint_callback, "best_model_path", "")
    torch.save(left, folder / f"{name}_{'stock' if stock else train.global_rank}.pt")


def run_alone(folder: Path) -> None:
    """Layers that draw, in a pipeline of one process and in none."""
    for name, strategy in (("stock", "auto"), ("0", bl.LayerPipeStrategy())):
        model = Lived(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, CLASSES)))
        torch.manual_seed(7)
        trainer(strategy, 1).fit(model, DataLoader(data(count=60), batch_size=6, shuffle=True))
        torch.save(model.state_dict(), folder / f"alone_{name}.pt")


def main() -> None:
    torch.set_num_threads(1)
    folder, way = Path(sys.argv[1]), sys.argv[2]
    for name, case in CASES.items() if way in ("stock", "pipe") else [(way, FAILING[way])]:
        run(folder, name, case, way == "stock")
    if way == "stock":
        run_alone(folder)


if __name__ == "__main__":
    main()
