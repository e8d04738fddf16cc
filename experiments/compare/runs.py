"""Runs of an experiment: each a process of its own, its logs read back.

The logs of a run are {metric: [(step, value), …]}.
"""

import argparse
import csv
import shutil
import subprocess
import sys
from pathlib import Path

from experiments.compare.summary import RUNS, Log

TRAIN = Path(__file__).parents[1] / "train"
STRATEGY = {"bppsa": None, "stock": "auto"}  # --trainer.strategy, if not the YAML's


def add_stock_steps_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--stock-steps`."""
    parser.add_argument(
        "--stock-steps", type=int, metavar="N",
        help="train stock PyTorch for the first N steps alone: the curves are compared over these, "
        "and it has no accuracy (default: the whole training)",
    )  # fmt: skip


def experiments() -> list[str]:
    """The names of all experiments."""
    return sorted(path.stem for path in TRAIN.glob("*.yaml") if path.with_suffix(".py").is_file())


def pair(
    experiment: str,
    folder: Path,
    arguments: list[str],
    stock_steps: int | None = None,
    stock_arguments: tuple[str, ...] = (),
) -> dict[str, Log]:
    """The logs of an experiment trained by scan and by stock PyTorch.

    Args:
        experiment: its name.
        folder: gets bppsa/ and stock/; earlier results there are removed.
        arguments: of its `fit`.
        stock_steps: where stock PyTorch stops; None for the whole training.
        stock_arguments: further ones, of stock PyTorch's run alone.
    """
    limit = () if stock_steps is None else ("--trainer.max_steps", str(stock_steps))
    more = {"bppsa": (), "stock": (*stock_arguments, *limit)}
    logs = {}
    for name in RUNS:
        print(f"--- {experiment}: {name}", flush=True)
        train(experiment, folder / name, STRATEGY[name], [*arguments, *more[name]])
        logs[name] = read(folder / name)
    return logs


def train(experiment: str, folder: Path, strategy: str | None, arguments: list[str]) -> None:
    """One run, to `folder`, where earlier results are removed; by the YAML's strategy if None."""
    shutil.rmtree(folder, ignore_errors=True)
    chosen = ["--trainer.strategy", strategy] if strategy else []
    try:
        status = command(experiment, "fit", folder, [*chosen, *arguments])
    except KeyboardInterrupt:
        sys.exit(f"\ninterrupted; run the same command again to start {experiment} afresh")
    if status:
        sys.exit(f"{experiment}, to {folder}, ended with status {status}")


def command(experiment: str, subcommand: str, folder: Path, arguments: list[str]) -> int:
    """Runs an experiment's `fit` or `test` with its results in `folder`; the exit status."""
    module = ["-m", f"experiments.train.{experiment}"]
    where = ["--folder", folder.as_posix()]
    return subprocess.run([sys.executable, *module, subcommand, *where, *arguments]).returncode


def read(folder: Path, version: int = 0) -> Log:
    """The metrics of a run in `folder`; later subcommands there have later versions."""
    return read_csv(folder / "csv" / f"version_{version}" / "metrics.csv")


def read_csv(path: Path) -> Log:
    """The metrics in a CSVLogger's file."""
    series: Log = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name not in ("step", "epoch"):
                    series.setdefault(name, []).append((int(row["step"]), float(value)))
    return series
