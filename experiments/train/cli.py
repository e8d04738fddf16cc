"""The command line of every experiment: Lightning's, its defaults in the YAML beside the file."""

import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger
from typing_extensions import override

import bppsa_lightning  # noqa: F401  (registers the strategy "bppsa")

# W&B keeps to a local folder, and to configuration, metrics and pictures: nothing of the machine's
# user, of its name, of what else is installed, printed or under version control. Variables that
# are set already stand.
WANDB = {
    "WANDB_MODE": "offline",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_HOST": "-",
    "WANDB_X_DISABLE_META": "true",
    "WANDB_X_SAVE_REQUIREMENTS": "false",
}


def run(
    model: type[pl.LightningModule],
    data: type[pl.LightningDataModule],
    script: str,
    links: Mapping[str, str] | None = None,
    **settings: Any,
) -> None:
    """Runs the subcommand on the command line: fit, validate, test or predict.

    Args:
        model: the experiment's model.
        data: its data; `pl.LightningDataModule`, and ``subclass_mode_data=True``, if the YAML names
            them.
        script: the experiment's ``__file__``; its defaults stand in the YAML of the same name.
        links: arguments of the model that the data tell: {attribute of the data: argument}.
        settings: further arguments of LightningCLI.
    """
    # Lightning 2.6 under torch 2.14; nothing a user could act on.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    defaults = {"default_config_files": [str(Path(script).with_suffix(".yaml"))]}
    Application(
        model,
        data,
        links=links,
        save_config_callback=LoggedConfig,
        seed_everything_default=0,
        parser_kwargs={command: defaults for command in ("fit", "validate", "test", "predict")},
        save_config_kwargs={"overwrite": True},
        auto_configure_optimizers=False,
        **settings,
    )


class Application(LightningCLI):
    """LightningCLI with `--online`, and with arguments of the model that the data tell."""

    def __init__(self, *args: Any, links: Mapping[str, str] | None = None, **settings: Any) -> None:
        self._links = links or {}
        super().__init__(*args, **settings)  # parses and runs

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        for source, target in self._links.items():
            parser.link_arguments(f"data.{source}", f"model.{target}", apply_on="instantiate")
        parser.add_argument(
            "--online",
            action="store_true",
            help="upload to W&B as it runs, after `wandb login`; otherwise its folder stays local",
        )

    @override
    def before_instantiate_classes(self) -> None:
        if self._get(self.config, "online"):
            os.environ["WANDB_MODE"] = "online"
            loggers = self._get(self.config, "trainer").logger
            for logger in loggers if isinstance(loggers, list) else [loggers]:
                if "offline" in getattr(logger, "init_args", {}):
                    logger.init_args.offline = False
        for name, value in WANDB.items():
            os.environ.setdefault(name, value)
        if "WANDB_DATA_DIR" not in os.environ:
            # Copies of tables and checkpoints wait here for `wandb sync`, and the run's log names
            # the place: not in the user's home. /var/tmp outlives a restart.
            lasting = "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK)
            folder = tempfile.mkdtemp(prefix="wandb-", dir="/var/tmp" if lasting else None)
            os.environ["WANDB_DATA_DIR"] = folder


class LoggedConfig(SaveConfigCallback):
    """The whole configuration in the loggers' folder, and in W&B beside the hyperparameters."""

    @override
    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        config = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_hyperparams(config)
