"""The command line of every experiment: Lightning's, its defaults in the YAML beside the file."""

import os
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.cli import LightningCLI

import bppsa_lightning  # noqa: F401  (registers the strategy "bppsa")


def run(
    model: type[pl.LightningModule],
    data: type[pl.LightningDataModule],
    script: str,
    **settings: Any,
) -> None:
    """Runs the subcommand on the command line: fit, validate, test or predict.

    Args:
        model: the experiment's model.
        data: its data; `pl.LightningDataModule`, and ``subclass_mode_data=True``, if the YAML names
            them.
        script: the experiment's ``__file__``; its defaults stand in the YAML of the same name.
        settings: further arguments of LightningCLI.
    """
    # Logged are configuration and metrics, nothing of the machine's user or its repositories.
    os.environ.setdefault("WANDB_DISABLE_GIT", "true")
    os.environ.setdefault("WANDB_X_DISABLE_META", "true")
    # Lightning 2.6 under torch 2.14; nothing a user could act on.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    defaults = {"default_config_files": [str(Path(script).with_suffix(".yaml"))]}
    LightningCLI(
        model,
        data,
        seed_everything_default=0,
        parser_kwargs={command: defaults for command in ("fit", "validate", "test", "predict")},
        save_config_kwargs={"overwrite": True},
        auto_configure_optimizers=False,
        **settings,
    )
