"""The command line: `bppsa`, or `python -m bppsa_lightning`."""

from bppsa_lightning.cli.main import main

__all__ = ["main"]
