"""The command line of every experiment: Lightning's, with YAML files of defaults."""

import os
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger
from typing_extensions import override

import bppsa_lightning as bl

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


HERE = Path(__file__).parent
COMMANDS = ("fit", "validate", "test", "predict")


def run(
    model: type[pl.LightningModule],
    data: type[pl.LightningDataModule],
    experiment: str,
    arguments: list[str] | None = None,
    links: Mapping[str, str] | None = None,
    prunes: bool = False,
    **settings: Any,
) -> None:
    """Runs the subcommand on the command line: fit, validate, test or predict.

    Args:
        model: the experiment's model.
        data: its data; `pl.LightningDataModule`, and ``subclass_mode_data=True``, if the YAML names
            them.
        experiment: its name; its defaults stand in <name>.yaml, over those of defaults.yaml.
        arguments: those of the command line, if None.
        links: arguments of the model that the data tell: {attribute of the data: argument}.
        prunes: whether there is a callback "pruning".
        settings: further arguments of LightningCLI.
    """
    # Lightning 2.6 under torch 2.14; nothing a user could act on.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    files = [str(HERE / f"{name}.yaml") for name in ("defaults", experiment)]
    Application(
        model,
        data,
        args=arguments,
        experiment=experiment,
        links=links,
        prunes=prunes,
        save_config_callback=LoggedConfig,
        seed_everything_default=0,
        parser_kwargs={command: {"default_config_files": files} for command in COMMANDS},
        save_config_kwargs={"overwrite": True},
        auto_configure_optimizers=False,
        **settings,
    )


class Application(LightningCLI):
    """LightningCLI with a folder for all results, callbacks by name, and `--online`.

    Args:
        experiment: takes the place of "{experiment}" in the Trainer's and the callbacks' arguments,
            as the value of `--folder` that of "{folder}".
        links: arguments of the model that the data tell.
        prunes: whether there is a callback "pruning".
    """

    def __init__(
        self,
        *args: Any,
        experiment: str,
        links: Mapping[str, str] | None = None,
        prunes: bool = False,
        **settings: Any,
    ) -> None:
        self._experiment, self._links, self._prunes = experiment, links or {}, prunes
        super().__init__(*args, **settings)  # parses and runs

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        for source, target in self._links.items():
            parser.link_arguments(f"data.{source}", f"model.{target}", apply_on="instantiate")
        parser.add_argument(
            "--folder",
            default=f"runs/{self._experiment}",
            help="of logs and checkpoints: {folder} in the YAML",
        )
        parser.add_argument(
            "--online",
            action="store_true",
            help="upload to W&B as it runs, after `wandb login`; otherwise its folder stays local",
        )
        if self._prunes:
            parser.add_lightning_class_args(pl.Callback, "pruning", subclass_mode=True)
        parser.add_lightning_class_args(bl.ChainMonitor, "monitor")
        parser.add_lightning_class_args(bl.StepTimer, "timer")
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")

    @override
    def before_instantiate_classes(self) -> None:
        names = {"{folder}": self._get(self.config, "folder"), "{experiment}": self._experiment}
        for part in ("trainer", "checkpoint"):
            fill(self._get(self.config, part), names)
        if self._get(self.config, "online"):
            self._go_online()
        for name, value in WANDB.items():
            os.environ.setdefault(name, value)
        if "WANDB_DATA_DIR" not in os.environ:
            # Copies of tables and checkpoints wait here for `wandb sync`, and the run's log names
            # the place: not in the user's home. /var/tmp outlives a restart.
            lasting = "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK)
            folder = tempfile.mkdtemp(prefix="wandb-", dir="/var/tmp" if lasting else None)
            os.environ["WANDB_DATA_DIR"] = folder

    def _go_online(self) -> None:
        os.environ["WANDB_MODE"] = "online"
        loggers = self._get(self.config, "trainer").logger
        for logger in loggers if isinstance(loggers, list) else [loggers]:
            if "offline" in getattr(logger, "init_args", {}):
                logger.init_args.offline = False


def fill(arguments: Any, names: Mapping[str, str]) -> Any:
    """Puts values in the places of {names}, in all strings of nested arguments; returns them."""
    if isinstance(arguments, str):
        for name, value in names.items():
            arguments = arguments.replace(name, value)
    elif isinstance(arguments, list):
        arguments[:] = [fill(item, names) for item in arguments]
    elif isinstance(arguments, Namespace):
        for key, value in vars(arguments).items():
            setattr(arguments, key, fill(value, names))
    return arguments


class LoggedConfig(SaveConfigCallback):
    """The whole configuration in the loggers' folder, and in W&B beside the hyperparameters."""

    @override
    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        config = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_hyperparams(config)
