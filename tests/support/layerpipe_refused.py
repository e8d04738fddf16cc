"""Trainings that a pipeline refuses, for tests/layerpipe: what is said, as JSON on the last line.

One process is enough, with as many stages as there are processes: one.
"""

import json
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
)
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import bppsa_lightning as bl
from support.layerpipe_training import Model, data, loader, trainer


class Other(Model):
    """The same with something that a pipeline cannot train."""

    def __init__(self, **parts) -> None:
        super().__init__()
        for name, module in parts.items():
            setattr(self, name, module)


class Manual(Model):
    automatic_optimization = False


class Twice(Model):
    def training_step(self, batch, index):
        return super().training_step(batch, index) + self.net(batch[0]).sum()


class Never(Model):
    def training_step(self, batch, index):
        return batch[0].sum().requires_grad_()


class Detached(Model):
    def training_step(self, batch, index):
        return self.net(batch[0]).detach().sum().requires_grad_()


class Kept(Model):
    """A penalty on what a hook keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = []
        self.net[4].register_forward_pre_hook(lambda _, inputs: self.kept.append(inputs[0]))

    def training_step(self, batch, index):
        return super().training_step(batch, index) + self.kept.pop().square().mean()


class Before(Model):
    """With layers before the chain, which are trained from the second epoch on."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4).requires_grad_(False)

    def loss(self, batch):
        return self.net(self.before(batch[0])).sum()

    def on_train_epoch_start(self) -> None:
        self.before.requires_grad_(self.current_epoch == 1)


class UsedBefore(Model):
    def loss(self, batch):
        return self.net(batch[0] + self.net[0].bias.sum()).sum()


class LBFGS(Model):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


class Pair(nn.Module):
    def forward(self, x):
        return x, x


class TwoOutputs(Model):
    def __init__(self) -> None:
        super().__init__()
        self.net.append(Pair())


class Overridden(nn.Sequential):
    def forward(self, x):
        return 0.5 * super().forward(x)


class InPlace(nn.Module):
    def forward(self, x):
        return nn.functional.relu_(x)


class Given(Model):
    """Layers of somebody's own."""

    def __init__(self, layers) -> None:
        super().__init__(lambda: layers)


def hooked() -> Model:
    model = Model()
    model.net[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    return model


def old_weight_norm() -> Model:
    linear = nn.Linear(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(linear)
    linear(torch.zeros(1, 4))
    model = Model()
    model.net = nn.Sequential(linear)
    model.loss = lambda batch: model.net(batch[0].float()).square().mean()
    return model


class Parts(Model):
    """Each process would read a part of the data."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(data(), 6, sampler=DistributedSampler(data(), 2, 0))


CASES = {
    "two chains": (lambda: Other(more=nn.Sequential(nn.Linear(2, 2))), {}, {}),
    "no such chain": (Model, {"chain": "nett"}, {}),
    "not a chain": (Model, {"chain": "net.0"}, {}),
    "outside": (lambda: Other(head=nn.Linear(2, 2)), {}, {}),
    "cuts": (Model, {"cuts": (3,)}, {}),
    "falling cuts": (Model, {"cuts": (5, 3)}, {}),
    "manual": (Manual, {}, {}),
    "accumulated": (Model, {}, {"accumulate_grad_batches": 2}),
    "accumulated later": (Model, {}, {"callbacks": [GradientAccumulationScheduler({1: 3})]}),
    "averaged": (Model, {}, {"callbacks": [EMAWeightAveraging()]}),
    "sync_batchnorm": (Model, {}, {"sync_batchnorm": True}),
    "average, mixed": (Model, {"versions": "average"}, {"precision": "bf16-mixed"}),
    "lbfgs": (LBFGS, {}, {}),
    "kept": (Kept, {}, {}),
    "unfrozen": (Before, {"chain": "net"}, {"max_epochs": 2}),
    "used before": (UsedBefore, {}, {}),
    "twice": (Twice, {}, {}),
    "never": (Never, {}, {}),
    "detached": (Detached, {}, {}),
    "two outputs": (TwoOutputs, {}, {}),
    "overridden": (lambda: Given(Overridden(nn.Linear(4, 3))), {}, {}),
    "in place": (lambda: Given(nn.Sequential(nn.Linear(4, 3), InPlace())), {}, {}),
    "post accumulate": (hooked, {}, {}),
    "old weight norm": (old_weight_norm, {}, {}),
    "parts of the data": (Parts, {}, {}),
    "swa": (Model, {}, {"callbacks": [StochasticWeightAveraging(0.01)]}),
}


def main() -> None:
    said = {}
    for name, (model, given, settings) in CASES.items():
        try:
            train = trainer(bl.LayerPipeStrategy(**given), 1, **settings)
            module = model()
            train.fit(module, None if isinstance(module, Parts) else loader())
            said[name] = "nothing"
        except Exception as error:  # of any kind: it is what the user sees
            said[name] = f"{type(error).__name__}: {error}"
        # What was changed for the time of fit is as before.
        left = [type(c).__name__ for c in train.callbacks if "Drains" in type(c).__name__]
        assert not left and isinstance(train, pl.Trainer)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
