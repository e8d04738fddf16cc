"""Runs every experiment of the paper, and writes one page that shows its figures beside ours.

    python experiments/figures.py               # quick, under 15 minutes on two cores
    python experiments/figures.py --full        # the paper's schedules; hours
    python experiments/figures.py --only lenet5 table1
    python experiments/figures.py --page        # the page anew, from the records at hand

The quick run keeps its records, pictures and page in runs/figures/: they show that everything
works, with too few steps to be kept. The full run writes experiments/records/, as each experiment
does on its own. What has no record is "not measured" on the page. EXPERIMENTS in figures_table.py
is the table of all of them; a new experiment is one more row.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import figures_page
import record
from figures_table import EXPERIMENTS, Experiment

QUICK = Path("runs/figures")
CIFAR10 = "--data bppsa_lightning.datasets.CIFAR10DataModule"
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=times())
    parser.add_argument(
        "--full", action="store_true",
        help="the paper's schedules (hours), kept in experiments/records; "
        f"without it short runs, kept in {QUICK}",
    )  # fmt: skip
    names = [experiment.name for experiment in EXPERIMENTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME",
                        help="some of " + ", ".join(names))  # fmt: skip
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    arguments = parser.parse_args()
    # The page that is asked for alone is the one of the records that are kept.
    folder = record.RECORDS if arguments.full or arguments.page else QUICK
    failed = []
    if not arguments.page:
        chosen = [e for e in EXPERIMENTS if e.name in arguments.only]
        failed = [e.name for e in chosen if not run(e, folder, arguments.full)]
    page = folder / "README.md"
    record.write_text(page, figures_page.page(folder, EXPERIMENTS, folder != QUICK))
    print(f"page: {page}")
    if failed:
        sys.exit(f"these experiments failed: {', '.join(failed)}")


def times() -> str:
    """How long the full runs take."""
    minutes = {e.name: e.minutes for e in EXPERIMENTS if e.full}
    return (
        "Minutes of the full runs, on two cores: "
        f"{', '.join(f'{name} {count}' for name, count in minutes.items())}; together "
        f"{sum(minutes.values()) / 60:.1f} hours. The corpus of instruments and its features are "
        "made once, in some 15 minutes more."
    )


def run(experiment: Experiment, folder: Path, full: bool) -> bool:
    """Runs an experiment, its records to `folder`; False if it failed."""
    command = experiment.command(full, CIFAR10 if Path("data/cifar10").is_dir() else "")
    if command is None:
        print(f"--- {experiment.name}: left out ({experiment.elsewhere})", flush=True)
        return True
    script, *rest = shlex.split(command)
    own = f"{rest[0]}.py" if script == "compare.py" else script
    if not (HERE / own).is_file():
        print(f"--- {experiment.name}: left out (there is no {HERE / own} so far)", flush=True)
        return True
    print(f"--- {experiment.name}: {command}", flush=True)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(HERE / script), *rest],
        env={**os.environ, record.FOLDER: str(folder.absolute())},
    )
    print(f"--- {experiment.name}: {time.perf_counter() - start:.0f} s", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    main()
