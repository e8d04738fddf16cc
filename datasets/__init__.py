"""Lightning datamodules of the experiments."""

from .bitstream import BitstreamDataModule

__all__ = ["BitstreamDataModule"]
