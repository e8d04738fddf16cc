"""Trains one experiment twice from the same seed, by scan and by stock PyTorch, and compares.

    python -m experiments.compare bitstream_rnn [arguments of its `fit`]
    python -m experiments.compare pruned_vgg11

Each run is a process of its own. Writes runs/<name>/{bppsa,stock}/ (logs, checkpoints),
runs/<name>/curve.png (loss over steps: the curves should coincide; loss over wall-clock
time) and summary.json, and prints a table. `--record` keeps picture, summary and
curves in experiments/records/ too; `--resume` goes on with runs that were interrupted. The name is
the experiment's; another schedule takes another one (`--name`).

VGG-11 is pruned in both: by `SparseJacobianPruning` under strategy "bppsa", and by Lightning's
`ModelPruning` under its own strategy.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments import recording
from experiments.compare import plots, pruned, runs, summary


@dataclass(frozen=True)
class Comparison:
    """How the two runs of an experiment are compared.

    Attributes:
        summarise: from both logs to their summary.
        table: from the summary to text.
        draw: (curves, summary with its environment, path) to a picture.
        stock_arguments: further ones of stock PyTorch's run.
    """

    summarise: Callable[[dict[str, summary.Log]], dict[str, Any]]
    table: Callable[[dict[str, Any]], str]
    draw: Callable[[summary.Curves, dict[str, Any], Path], None]
    stock_arguments: tuple[str, ...] = ()


CURVES = Comparison(summary.summarise, summary.table, plots.training)
PRUNED = Comparison(
    pruned.summarise,
    pruned.table,
    plots.pruned,
    ("--pruning", "experiments.train.stock_pruning.StockPruning"),
)


def parser() -> argparse.ArgumentParser:
    # No abbreviations: all that is not listed here is the experiment's.
    parser = argparse.ArgumentParser(
        "python -m experiments.compare",
        description=__doc__.split("\n")[0],
        epilog="other arguments: of `python -m experiments.train.<experiment> fit`",
        allow_abbrev=False,
    )
    parser.add_argument("experiment", choices=runs.experiments())
    runs.add_name_argument(parser, "the experiment's")
    runs.add_stock_steps_argument(parser)
    runs.add_resume_argument(parser)
    recording.add_record_argument(parser)
    return parser


def import_ahead() -> None:
    """Imports what is needed after the runs, while the first run imports and measures nothing yet.

    It asks for no GPU: one that a single process may use is the runs'.
    """
    recording.pyplot()
    import_module("bppsa_lightning")


def main(arguments: list[str] | None = None) -> None:
    asked, fit_arguments = parser().parse_known_args(arguments)
    experiment, name = asked.experiment, asked.name or asked.experiment
    folder = Path("runs") / name
    how = PRUNED if experiment == "pruned_vgg11" else CURVES
    if how is PRUNED and asked.stock_steps is not None:
        parser().error("--stock-steps: pruned_vgg11 compares whole trainings")
    ThreadPoolExecutor(1).submit(import_ahead)
    logs = runs.pair(
        experiment, folder, fit_arguments, asked.stock_steps, how.stock_arguments, asked.resume
    )
    found = how.summarise(logs)
    results = {"experiment": experiment, "name": name, "arguments": fit_arguments, **found}
    record = recording.write(folder / "summary.json", results)
    curves = summary.curves(logs)
    how.draw(curves, record, folder / "curve.png")
    if asked.record:
        recording.write(recording.RECORDS / f"{name}.json", results)
        recording.write(recording.RECORDS / f"{name}_curves.json", {"curves": curves})
        how.draw(curves, record, recording.RECORDS / f"{name}.png")
    print(how.table(found))
    print(f"\ncurves: {folder / 'curve.png'}   summary: {folder / 'summary.json'}")


if __name__ == "__main__":
    main()
