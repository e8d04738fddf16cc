"""Runs every experiment of the paper, and writes one page that shows its figures beside ours.

    python -m experiments.paper.run_all               # quick, under 15 minutes on two cores
    python -m experiments.paper.run_all --full        # the paper's schedules; hours
    python -m experiments.paper.run_all --full --resume   # goes on with trainings that were stopped
    python -m experiments.paper.run_all --only lenet5 table1
    python -m experiments.paper.page                  # the page alone, from the records at hand

The quick run keeps its records, pictures and page in runs/figures/: they show that everything
works, with too few steps to be kept. The full run writes experiments/records/. What has no record
is "not measured" on the page. Each experiment is a file in sections/.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from experiments import recording
from experiments.paper import page
from experiments.paper.section import Section
from experiments.paper.sections import SECTIONS

QUICK = Path("runs/figures")
CIFAR10 = "--data bppsa_lightning.datasets.CIFAR10DataModule"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=times())
    parser.add_argument(
        "--full", action="store_true",
        help="the paper's schedules (hours), kept in experiments/records; "
        f"without it short runs, kept in {QUICK}",
    )  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on with the long trainings "
                        "where they were stopped; what is finished is only read")  # fmt: skip
    names = [section.name for section in SECTIONS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME",
                        help="some of " + ", ".join(names))  # fmt: skip
    return parser


def times() -> str:
    """How long the full runs take."""
    minutes = {section.name: section.minutes for section in SECTIONS if section.run}
    return (
        "Minutes of the full runs, on two cores: "
        f"{', '.join(f'{name} {count}' for name, count in minutes.items())}; together "
        f"{sum(minutes.values()) / 60:.1f} hours. The corpus of instruments and its features are "
        "made once, in some 15 minutes more."
    )


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    folder = recording.RECORDS if asked.full else QUICK
    chosen = [section for section in SECTIONS if section.name in asked.only]
    failed = [
        section.name for section in chosen if not run(section, folder, asked.full, asked.resume)
    ]
    print(f"page: {page.write(folder, asked.full)}")
    if failed:
        sys.exit(f"these experiments failed: {', '.join(failed)}")


def run(section: Section, folder: Path, full: bool, resume: bool = False) -> bool:
    """Runs an experiment, its records to `folder`; False if it failed."""
    images = CIFAR10 if Path("data/cifar10").is_dir() else ""
    arguments = section.arguments(full, images, resume)
    if not arguments:
        print(f"--- {section.name}: left out ({section.elsewhere})", flush=True)
        return True
    print(f"--- {section.name}: {shlex.join(arguments)}", flush=True)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, recording.FOLDER: str(folder.absolute())},
    )
    print(f"--- {section.name}: {time.perf_counter() - start:.0f} s", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    main()
