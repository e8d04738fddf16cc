"""Pruned VGG-11: trained, 97 % of each layer's weights pruned, retrained (arXiv:1907.10134, 4.2).

The network of the paper's figure 10, on 3 x 32 x 32 images. A LightningCLI application; defaults
stand in pruned_vgg11.yaml beside it: real digits at hand without a network, CIFAR-10 where it is.

    python -m experiments.train.pruned_vgg11 fit
    python -m experiments.train.pruned_vgg11 fit --data bppsa_lightning.datasets.CIFAR10DataModule
    python -m experiments.compare pruned_vgg11       # beside the dense-masked one of stock PyTorch
"""

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from experiments.train import cli
from experiments.train.classifier import Classifier

# Channels of the convolutions, "M" a pooling: VGG-11 (arXiv:1409.1556), configuration A.
LAYERS = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")


class PrunedVGG11(Classifier):
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

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


def vgg11(num_classes: int = 10, norm: bool = True, narrower: int = 1) -> nn.Sequential:
    """The network, initialised for ReLU: without a norm, PyTorch's default fades over 8 layers.

    Args:
        num_classes: classes.
        norm: whether a batch norm follows each convolution.
        narrower: what the channels of each convolution are divided by.
    """
    layers: list[nn.Module] = []
    channels = 3
    for layer in LAYERS:
        if layer == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            outputs = layer // narrower
            convolution = nn.Conv2d(channels, outputs, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            nn.init.zeros_(convolution.bias)
            layers += [convolution, *([nn.BatchNorm2d(outputs)] if norm else []), nn.ReLU()]
            channels = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, num_classes))


def main(arguments: list[str] | None = None) -> None:
    cli.run(
        PrunedVGG11,
        pl.LightningDataModule,
        "pruned_vgg11",
        arguments,
        prunes=True,
        subclass_mode_data=True,
    )


if __name__ == "__main__":
    main()
