"""Lightning datamodules of the experiments."""

from .bitstream import BitstreamDataModule
from .cifar10 import CIFAR10DataModule
from .digits import DigitsDataModule
from .irmas import IRMASDataModule
from .rendered_irmas import RenderedIRMASDataModule

__all__ = [
    "BitstreamDataModule",
    "CIFAR10DataModule",
    "DigitsDataModule",
    "IRMASDataModule",
    "RenderedIRMASDataModule",
]
