"""`bppsa report RUN`: the page about a run, made again from its data where that is needed."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from bppsa_lightning.cli.answer import Answer, Failed, WrongUsage, load_package

# What the callback `RunReport` writes into a run's folder.
DATA, PAGE = "bppsa_report.json", "bppsa_report.html"
_MOST_LISTED = 5

HELP = "show the report of a training that had the callback bl.RunReport"
ABOUT = """\
Makes the HTML page about a run from its data, and prints where the page is. A run has data if it
was trained with `Trainer(callbacks=[bl.RunReport()])`."""
EXAMPLES = f"""\
examples:
  bppsa report lightning_logs/version_3
  bppsa report lightning_logs/version_3 --open      # in the browser
  bppsa report {DATA} --output page.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which run, and where to."""
    parser.add_argument("run_folder", metavar="RUN", help=f"the run's folder, or its {DATA}")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--output", metavar="FILE", help=f"write it there (default: {PAGE} in RUN)")


def run(asked: argparse.Namespace) -> Answer:
    """Writes the page, and says where."""
    data = data_of(Path(asked.run_folder))
    page = Path(asked.output) if asked.output else data.with_suffix(".html")
    load_package()
    from bppsa_lightning.report import render

    try:
        render(data, page)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        words = _words(error, data)
        raise Failed(f"{data} is damaged, or another version wrote it ({words})") from error
    except OSError as error:
        what = data if error.filename == str(data) else page  # not the file written beside it
        raise Failed(f"{what} cannot be read or written ({error.strerror})") from error
    opened = bool(asked.open) and webbrowser.open(page.resolve().as_uri())
    text = str(page)
    if asked.open and not opened:
        text += "\nNo browser was found: open the file by hand."
    return Answer({"data": str(data), "page": str(page), "opened": opened}, text)


def _words(error: Exception, data: Path) -> str:
    return str(error).removeprefix(f"{data}: ") if isinstance(error, ValueError) else repr(error)


def data_of(run: Path) -> Path:
    """The data of a run.

    Raises:
        WrongUsage: there is none; the message names those of runs below, if there are some.
    """
    if not run.exists():
        raise WrongUsage(f"RUN: {run} does not exist")
    if run.is_file():
        return run
    if (data := run / DATA).is_file():
        return data
    below = sorted(path.parent for path in run.rglob(DATA))
    if not below:
        raise WrongUsage(
            f"RUN: found no {DATA} in {run}. It is written by a training with "
            "Trainer(callbacks=[bl.RunReport()])"
        )
    listed = ", ".join(map(str, below[:_MOST_LISTED]))
    more = f" and {len(below) - _MOST_LISTED} more" if len(below) > _MOST_LISTED else ""
    raise WrongUsage(f"RUN: found no {DATA} in {run} itself, but in {listed}{more}")
