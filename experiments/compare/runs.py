"""Runs of an experiment: each a process of its own, its logs read back.

The logs of a run are {metric: [(step, value), …]}.
"""

import argparse
import csv
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

from experiments.compare.summary import RUNS, Log, Series

LOSS, CLOCK = "train/loss", "seconds/elapsed"
# Between two rows, of which the longer ones are stops: no validation of ours takes as long.
STOP_SECONDS, STOP_ROWS = 30.0, 50.0
TRAIN = Path(__file__).parents[1] / "train"
STRATEGY = {"bppsa": None, "stock": "auto"}  # --trainer.strategy, if not the YAML's


def add_stock_steps_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--stock-steps`."""
    parser.add_argument(
        "--stock-steps", type=int, metavar="N",
        help="train stock PyTorch for the first N steps alone: the curves are compared over these, "
        "and it has no accuracy (default: the whole training)",
    )  # fmt: skip


def add_name_argument(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds `--name`, of the folder in runs/ and of the record."""
    parser.add_argument(
        "--name", type=file_name,
        help=f"of its folder in runs/ and of its record, for another schedule (default: {default})",
    )  # fmt: skip


def file_name(text: str) -> str:
    """The text, if a file may have it as its name and stay in its folder."""
    if not text or text != Path(text).name or text == "..":
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted the name of a file")
    return text


def add_resume_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--resume`."""
    parser.add_argument(
        "--resume", action="store_true",
        help="go on where trainings with the same arguments were interrupted, at their last "
        "checkpoints (default: train afresh)",
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
    resume: bool = False,
) -> dict[str, Log]:
    """The logs of an experiment trained by scan and by stock PyTorch.

    Args:
        experiment: its name.
        folder: gets bppsa/ and stock/; earlier results there are removed, unless `resume`.
        arguments: of its `fit`.
        stock_steps: where stock PyTorch stops; None for the whole training.
        stock_arguments: further ones, of stock PyTorch's run alone.
        resume: go on from the last checkpoints there; what has none starts afresh.
    """
    limit = () if stock_steps is None else ("--trainer.max_steps", str(stock_steps))
    more = {"bppsa": (), "stock": (*stock_arguments, *limit)}
    logs = {}
    for name in RUNS:
        print(f"--- {experiment}: {name}", flush=True)
        train(experiment, folder / name, STRATEGY[name], [*arguments, *more[name]], resume)
        logs[name] = read_training(folder / name)
    return logs


def train(
    experiment: str, folder: Path, strategy: str | None, arguments: list[str], resume: bool = False
) -> None:
    """One run, to `folder`; by the YAML's strategy if None.

    Earlier results there are removed, unless there is a checkpoint to `resume` from; not before the
    run has made its folder, which one with a mistyped argument does not.
    """
    chosen, earlier = ["--trainer.strategy", strategy] if strategy else [], None
    checkpoint = folder / "checkpoints" / "last.ckpt"
    if resume and checkpoint.is_file():
        chosen += ["--ckpt_path", checkpoint.as_posix()]
    else:
        earlier = _set_aside(folder)
    try:
        status = command(experiment, "fit", folder, [*chosen, *arguments])
    except KeyboardInterrupt:
        sys.exit(
            f"\ninterrupted; the same command again starts {experiment} afresh, and with --resume "
            "goes on from the last checkpoint"
        )
    finally:
        if earlier is not None and folder.exists():
            shutil.rmtree(earlier, ignore_errors=True)
        elif earlier is not None:
            earlier.rename(folder)
    if status:
        sys.exit(f"{experiment}, to {folder}, ended with status {status}")


def _set_aside(folder: Path) -> Path | None:
    """Where the results of a folder are now; None if there were none."""
    aside = folder.with_name(f"{folder.name}.earlier")
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed
        folder.rename(aside)
    return aside if aside.exists() else None


def command(experiment: str, subcommand: str, folder: Path, arguments: list[str]) -> int:
    """Runs an experiment's `fit` or `test` with its results in `folder`; the exit status."""
    module = ["-m", f"experiments.train.{experiment}"]
    where = ["--folder", folder.as_posix()]
    return subprocess.run([sys.executable, *module, subcommand, *where, *arguments]).returncode


def versions(folder: Path) -> list[Path]:
    """The logs of a run's subcommands in `folder`, the first one first."""
    paths = folder.glob("csv/version_*/metrics.csv")
    return sorted(paths, key=lambda path: int(path.parent.name.partition("_")[2]))


def read_last(folder: Path) -> Log:
    """The metrics of the last subcommand in `folder`."""
    return read_csv(versions(folder)[-1])


def read_training(folder: Path) -> Log:
    """The metrics of a training in `folder`, whose parts are versions: it may have been resumed.

    A part holds from its first step on, whatever earlier ones went on to. Its clock starts where
    the last step that is kept of the part before was, and stood while the process was stopped
    (`without_stops`). The logger writes a hundred steps at a time: after a kill up to so many have
    no rows.
    """
    whole: Log = {}
    for part in map(read_csv, versions(folder)):
        if not part.get(LOSS):
            continue
        first = part[LOSS][0][0]
        for name, series in whole.items():
            whole[name] = [(step, value) for step, value in series if step < first]
        before = whole[CLOCK][-1][1] if whole.get(CLOCK) else 0.0
        part[CLOCK] = [(step, before + seconds) for step, seconds in without_stops(part[CLOCK])]
        for name, series in part.items():
            whole.setdefault(name, []).extend(series)
    if not whole:
        raise FileNotFoundError(f"{folder}: found no metrics of a training, wanted {LOSS} in csv/")
    return whole


def without_stops(clock: Series) -> Series:
    """A clock that stood while the process did: stopped by a signal, or with its machine asleep.

    From one row to the next no time passes if more than STOP_SECONDS did, and STOP_ROWS times the
    usual.
    """
    passed = [now - then for (_, then), (_, now) in pairwise(clock)]
    usual = median(passed) if passed else 0.0
    stopped, found = 0.0, clock[:1]
    for (step, seconds), interval in zip(clock[1:], passed, strict=True):
        stopped += interval if interval > max(STOP_SECONDS, STOP_ROWS * usual) else 0.0
        found.append((step, seconds - stopped))
    return found


def read_csv(path: Path) -> Log:
    """The metrics in a CSVLogger's file."""
    series: Log = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name not in ("step", "epoch"):
                    series.setdefault(name, []).append((int(row["step"]), float(value)))
    return series
