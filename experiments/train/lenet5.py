"""LeNet-5 on small images, its backward by a scan over depth (arXiv:1907.10134, section 4.1).

LeNet-5 (LeCun et al., 1998) as it is used on CIFAR-10: two convolutions, each with ReLU and
max-pooling, and three linear layers. All twelve layers are one chain, whose sparse Jacobians are
scanned by Blelloch's algorithm. On a few cores that is slower than PyTorch, to which the planner on
its own would leave it: this experiment shows that the gradients are the same.

A LightningCLI application; defaults stand in lenet5.yaml beside it: real digits at hand without a
network, CIFAR-10 where it is.

    python -m experiments.train.lenet5 fit
    python -m experiments.train.lenet5 fit --trainer.strategy auto      # stock PyTorch
    python -m experiments.train.lenet5 fit --data bppsa_lightning.datasets.CIFAR10DataModule
    python -m experiments.compare lenet5                            # both, beside each other
"""

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from experiments.train import cli
from experiments.train.classifier import Classifier


class LeNet5(Classifier):
    """Convolutions of 6 and 16 channels, linear layers of 120, 84 and `num_classes` units.

    Args:
        num_classes: classes.
        lr: learning rate of SGD.
        momentum: of SGD.
    """

    def __init__(self, num_classes: int = 10, lr: float = 0.001, momentum: float = 0.9) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr, self.momentum = lr, momentum
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, num_classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, num_classes) of images x (B, 3, 32, 32)."""
        return self.layers(x)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


def main(arguments: list[str] | None = None) -> None:
    cli.run(LeNet5, pl.LightningDataModule, "lenet5", arguments, subclass_mode_data=True)


if __name__ == "__main__":
    main()
