"""Trainings of a pipeline, for tests/layerpipe: each process leaves what it has in the end.

    python layerpipe_training.py PROCESSES FOLDER [CASE ...]

The other processes are started in the same way. Writes FOLDER/<case>_<rank>.pt.
"""

import dataclasses
import sys
from pathlib import Path
from unittest import mock

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import SumMetric

import bppsa_lightning as bl
from bppsa_lightning.layerpipe import planning

STEPS, CLASSES = 50, 3
CUTS = {1: (), 2: (3,), 3: (2, 5), 4: (1, 4, 6)}


class Block(nn.Module):
    """Two layers and a way around them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(torch.tanh(self.a(x)))


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.ReLU(inplace=True),
        nn.Linear(8, 8), Block(8), nn.LayerNorm(8), nn.Linear(8, CLASSES),
    )  # fmt: skip


def elementary() -> nn.Sequential:
    """Each layer a single operation, as versions="average" is stated for."""
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(),
        nn.Linear(8, CLASSES),
    )  # fmt: skip


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(6, CLASSES),
    )  # fmt: skip


class Model(pl.LightningModule):
    """A chain under a loss, with metrics."""

    def __init__(self, layers=perceptron, optimizer: str = "sgd") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net, self.optimizer = layers(), optimizer
        self.seen = torch.nn.ModuleDict({part: SumMetric() for part in ("train_", "val_")})

    def loss(self, batch) -> Tensor:
        x = batch[0].to(self.net[0].weight.dtype)
        return nn.functional.cross_entropy(self.net(x).mul_(1), batch[1])  # in place, as users do

    def training_step(self, batch, _) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True, sync_dist=True)
        self.seen["train_"](len(batch[0]))
        self.log("train_seen", self.seen["train_"], on_epoch=True)
        return loss

    def validation_step(self, batch, _) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)
        self.seen["val_"](len(batch[0]))
        self.log("val_seen", self.seen["val_"], on_epoch=True)

    test_step = validation_step

    def predict_step(self, batch, _) -> Tensor:
        return self.net(batch[0])

    def configure_optimizers(self):
        if self.optimizer == "sgd":
            optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
        else:
            optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def data(images: bool = False, count: int = 6 * STEPS) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    size = (count, 1, 6, 6) if images else (count, 4)
    x = torch.randn(size, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.randint(CLASSES, (count,), generator=generator))


def loader(images: bool = False, count: int = 6 * STEPS, **settings) -> DataLoader:
    return DataLoader(data(images, count), **{"batch_size": 6, **settings})


def of_a_case(case: str) -> DataLoader:
    """The data of a case of `Run.against_the_oracle`: 50 steps and more."""
    images = case.endswith("convolutions")
    if case.startswith("zero_bubble"):  # asks for equal batches
        return loader(images, 12 * STEPS, batch_size=12)
    return loader(images, 7 * STEPS + 2, batch_size=7)


def trainer(strategy, processes: int, **settings) -> pl.Trainer:
    quiet = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "accelerator": "cpu", "precision": "64-true",
        "max_epochs": 1, "devices": processes,
    }  # fmt: skip
    return pl.Trainer(strategy=strategy, **{**quiet, **settings})


def lending(lent, shared):
    """A plan in which stages do tasks of others."""

    def make_plan(chain, x, strategy):
        return dataclasses.replace(planning.make_plan(chain, x, strategy), lent=lent, shared=shared)

    return mock.patch("bppsa_lightning.layerpipe.strategy.make_plan", make_plan)


class Meets(pl.Callback):
    """A barrier after the eleventh mini-batch."""

    def on_train_batch_end(self, trainer, module, outputs, batch, index) -> None:
        if index == 10:
            trainer.strategy.barrier()


class Run:
    """The trainings of this process.

    Args:
        processes: how many there are.
        folder: where results go.
    """

    def __init__(self, processes: int, folder: Path) -> None:
        self.processes, self.folder, self.cuts = processes, folder, CUTS[processes]

    def leave(self, case: str, train: pl.Trainer, model: Model, **more) -> None:
        kept = {"weights": model.state_dict(), "steps": train.global_step, **more}
        kept["metrics"] = dict(train.callback_metrics)
        torch.save(kept, self.folder / f"{case}_{train.global_rank}.pt")

    def against_the_oracle(self, case: str) -> None:
        """ "schedule-optimizer-delays-versions-layers": compared in test_executor.py."""
        schedule, optimizer, delays, versions, layers = case.split("-")
        strategy = bl.LayerPipeStrategy(
            schedule, delays == "delayed", versions, self.cuts, trace=self.folder / f"{case}.json"
        )
        model = Model(globals()[layers], optimizer)
        train = trainer(strategy, self.processes)
        train.fit(model, of_a_case(case))
        self.leave(case, train, model, observed=strategy.observed_delays, plan=strategy.plan.cuts)

    def lent(self) -> None:
        """Stages that do tasks of those before and after them."""
        cuts = {2: (4,), 3: (4, 7), 4: (2, 4, 7)}[self.processes]
        weights = {2: {0: 1, 2: 1}, 3: {0: 1, 2: 1, 4: 2}, 4: {0: 1, 2: 2, 4: 3}}[self.processes]
        for name, lent, shared in [
            ("weights", weights, {}),
            ("inputs", {}, {stage: 0.5 for stage in range(1, self.processes)}),
            ("both", {0: 1}, {self.processes - 1: 0.3}),
        ]:
            strategy = bl.LayerPipeStrategy(cuts=cuts)
            model = Model()
            train = trainer(strategy, self.processes)
            with lending(lent, shared):
                train.fit(model, of_a_case("lent"))
            self.leave(f"lent-{name}", train, model, plan=strategy.plan.cuts)
        # Processes that meet within an epoch: at a user's barrier, and before validations.
        model = Model()
        train = trainer(
            bl.LayerPipeStrategy(cuts=cuts), self.processes,
            val_check_interval=20, num_sanity_val_steps=0, callbacks=[Meets()],
        )  # fmt: skip
        with lending(weights, {}):
            train.fit(model, of_a_case("lent"), loader())
        self.leave("validated", train, model, plan=cuts)

    def drained(self) -> None:
        """A validation within the epoch, a checkpoint at another place; the run goes on from it."""
        keeps = ModelCheckpoint(
            self.folder / "kept", filename="{step}", every_n_train_steps=20, save_top_k=-1,
            monitor="train_loss",
        )  # fmt: skip
        stops = EarlyStopping("val_loss", patience=9)
        settings = {"enable_checkpointing": True, "callbacks": [keeps, stops]}
        model = Model(optimizer="adam")
        train = trainer(
            bl.LayerPipeStrategy(cuts=self.cuts), self.processes, val_check_interval=25,
            num_sanity_val_steps=1, **settings,
        )  # fmt: skip
        train.fit(model, loader(), loader())
        self.leave("drained", train, model)
        again = Model(optimizer="adam")
        train = trainer(bl.LayerPipeStrategy(cuts=self.cuts), self.processes, val_check_interval=25)
        train.fit(again, loader(), loader(), ckpt_path=self.folder / "kept" / "step=20.ckpt")
        self.leave("resumed", train, again)
        predicted = torch.cat(train.predict(again, loader()))
        self.leave("predicted", train, again, predicted=predicted)

    def features(self) -> None:
        """What users of a Trainer ask for."""
        for name, strategy, settings in [
            ("clipped", {"schedule": "gpipe"}, {"gradient_clip_val": 0.05}),
            ("clipped_value", {},
             {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
            ("accumulated", {"delays": False}, {"accumulate_grad_batches": 2}),
            ("accumulated_zb", {"schedule": "zero_bubble"}, {"accumulate_grad_batches": 2}),
            ("mixed", {}, {"precision": "bf16-mixed"}),
            ("epochs", {}, {"max_epochs": 3}),
            ("shuffled", {"schedule": "gpipe"}, {"max_epochs": 2}),
            ("default_cuts", {"cuts": None}, {}),
        ]:  # fmt: skip
            model = Model()
            for parameter in model.net[4].parameters():
                parameter.requires_grad_(False)
            strategy = bl.LayerPipeStrategy(**{"cuts": self.cuts, **strategy})
            train = trainer(strategy, self.processes, **settings)
            shuffled = loader(shuffle=name in ("epochs", "shuffled"))
            pl.seed_everything(7 + train.global_rank, verbose=False)
            train.fit(model, shuffled)
            self.leave(name, train, model, plan=strategy.plan.cuts)


def main() -> None:
    torch.set_num_threads(1)
    run = Run(int(sys.argv[1]), Path(sys.argv[2]))
    for case in sys.argv[3:]:
        if "-" in case:
            run.against_the_oracle(case)
        else:
            getattr(run, case)()


if __name__ == "__main__":
    main()
