"""Pruned VGG-11: trained, 97 % of each layer's weights pruned, retrained (arXiv:1907.10134, 4.2).

The network of the paper's figure 10, on 3 x 32 x 32 images. A LightningCLI application; defaults
stand in pruned_vgg11.yaml beside it: real digits at hand without a network, CIFAR-10 where it is.

    python experiments/pruned_vgg11.py fit
    python experiments/pruned_vgg11.py fit --data bppsa_lightning.datasets.CIFAR10DataModule
    python experiments/compare_pruned.py        # beside the dense-masked one of stock PyTorch
"""

import os
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LightningCLI
from torch import Tensor, nn
from torch.nn import functional as F

import bppsa_lightning  # noqa: F401  (registers the strategy "bppsa")

# Channels of the convolutions, "M" a pooling: VGG-11 (arXiv:1409.1556), configuration A.
LAYERS = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")


class PrunedVGG11(pl.LightningModule):
    """VGG-11's convolutions and one linear layer; 9.2 million weights.

    Nothing in it knows of pruning: that is the callback's business.

    Args:
        num_classes: classes.
        lr: learning rate of SGD.
        momentum: of SGD.
        norm: whether a batch norm follows each convolution. Without, a network that has lost 97 %
            of each layer passes on next to nothing, and takes very long to recover.
    """

    def __init__(
        self, num_classes: int = 10, lr: float = 0.005, momentum: float = 0.9, norm: bool = True
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr, self.momentum = lr, momentum
        self.layers = vgg11(num_classes, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, num_classes) of images x (B, 3, 32, 32)."""
        return self.layers(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._loss(batch, "train", prog_bar=True)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._loss(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._loss(batch, "test")

    def _loss(self, batch: tuple[Tensor, Tensor], stage: str, prog_bar: bool = False) -> Tensor:
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        accuracy = (logits.argmax(-1) == y).float().mean()
        self.log(f"{stage}/loss", loss, prog_bar=prog_bar, batch_size=len(y))
        self.log(f"{stage}/accuracy", accuracy, prog_bar=stage == "val", batch_size=len(y))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


def vgg11(num_classes: int = 10, norm: bool = True) -> nn.Sequential:
    """The network, initialised for ReLU: without a norm, PyTorch's default fades over 8 layers."""
    layers: list[nn.Module] = []
    channels = 3
    for layer in LAYERS:
        if layer == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            convolution = nn.Conv2d(channels, layer, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            nn.init.zeros_(convolution.bias)
            layers += [convolution, *([nn.BatchNorm2d(layer)] if norm else []), nn.ReLU()]
            channels = layer
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, num_classes))


def main() -> None:
    # Logged are configuration and metrics, nothing of the machine's user or its repositories.
    os.environ.setdefault("WANDB_DISABLE_GIT", "true")
    os.environ.setdefault("WANDB_X_DISABLE_META", "true")
    # Lightning 2.6 under torch 2.14; nothing a user could act on.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    defaults = {"default_config_files": [str(Path(__file__).with_suffix(".yaml"))]}
    LightningCLI(
        PrunedVGG11,
        pl.LightningDataModule,
        subclass_mode_data=True,
        seed_everything_default=0,
        parser_kwargs={command: defaults for command in ("fit", "validate", "test", "predict")},
        save_config_kwargs={"overwrite": True},
        auto_configure_optimizers=False,
    )


if __name__ == "__main__":
    main()
