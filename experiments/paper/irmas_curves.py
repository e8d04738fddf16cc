"""The paper's training curves of its GRU: features S, M and L, by scan and by stock PyTorch.

    python -m experiments.paper.irmas_curves                      # B = 16, as in the paper: 35 min
    python -m experiments.paper.irmas_curves --batches 16 32 64   # 75 minutes
    python -m experiments.paper.irmas_curves --stock-steps 1000   # of stock, the beginning: 10 min
    python -m experiments.paper.irmas_curves --data.per_class 30  # any argument of `fit`

Each size is trained as `experiments.compare irmas_gru` does, into runs/irmas_curves/<name>/; then
the network that was trained by scan is tested on the excerpts set aside. Writes <name>.json, a row
for each size, and a picture; the name is irmas_gru, or `--name`. T frames, F features.
"""

import argparse
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from bppsa_lightning.datasets.irmas_features import SETTINGS
from experiments import recording
from experiments.compare import plots, runs, summary
from experiments.compare.summary import RUNS, Log, times
from experiments.paper.sections.irmas_gru import compared, table

NAME = "irmas_gru"
TOLERANCE = 1e-4  # relative, of losses


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="other arguments: of `python -m experiments.train.irmas_gru fit`",
        allow_abbrev=False,
    )
    parser.add_argument("--features", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--batches", nargs="+", type=int, default=[16], metavar="B")
    parser.add_argument(
        "--add", action="store_true", help="keep the rows of other sizes, from earlier runs"
    )
    runs.add_name_argument(parser, NAME)
    runs.add_stock_steps_argument(parser)
    runs.add_resume_argument(parser)
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    asked, fit_arguments = parser().parse_known_args(arguments)
    name, folder = asked.name or NAME, recording.folder(asked.record)
    path = folder / f"{name}.json"
    rows = recording.read(name, folder)["rows"] if asked.add and path.is_file() else []
    for batch in asked.batches:
        for features in asked.features:
            print(f"=== features {features}, {batch} excerpts a batch", flush=True)
            row = measure(name, features, batch, fit_arguments, asked.stock_steps, asked.resume)
            row["arguments"] = arguments
            others = [r for r in rows if (r["features"], r["B"]) != (features, batch)]
            rows = sorted([*others, row], key=lambda r: (r["B"], r["T"]))
            print(summary.table(row), flush=True)
            # After each size: a run that is stopped is continued with --add.
            record = recording.write(path, {"experiment": NAME, "rows": rows})
    # The more lines of panels, the fewer points: all curves together stay as large.
    points = summary.CURVE_POINTS // (2 * len({row["B"] for row in rows}))
    curves = [summary.curves(logs_of(name, r["features"], r["B"]), points) for r in rows]
    recording.write(path.with_name(f"{name}_curves.json"), {"curves": curves})
    draw(curves, record, path.with_suffix(".png"))
    print(f"{table(rows)}\n\nrecord: {path}, .png")


def folder_of(name: str, features: str, batch: int) -> Path:
    return Path("runs") / "irmas_curves" / name / f"{features}{batch}"


def logs_of(name: str, features: str, batch: int) -> dict[str, Log]:
    folder = folder_of(name, features, batch)
    return {name: runs.read_training(folder / name) for name in RUNS}


def measure(
    name: str, features: str, batch: int, arguments: list[str], stock_steps: int | None,
    resume: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """A size's row of the record `name`."""
    sizes = ["--data.features", features, "--data.batch_size", str(batch)]
    folder = folder_of(name, features, batch)
    logs = runs.pair(NAME, folder, [*sizes, *arguments], stock_steps, resume=resume)
    checkpoint = folder / "bppsa" / "checkpoints" / "last.ckpt"
    data = torch.load(checkpoint, weights_only=True)["datamodule_hyper_parameters"]
    return {
        "features": features,
        "T": SETTINGS[features].frames,
        "F": SETTINGS[features].features,
        "B": batch,
        "per_class": data.get("per_class"),
        "threads": torch.get_num_threads(),
        "steps": logs["bppsa"]["train/loss"][-1][0] + 1,
        **summary.summarise(logs),
        "train_accuracy": mean(summary.values(logs["bppsa"]["train/accuracy"])[-summary.FINAL :]),
        "steps_together": together(logs),
        "test_accuracy": test(checkpoint, [*sizes, *arguments]),
    }


def together(logs: dict[str, Log]) -> int:
    """The steps until the two losses differ by more than TOLERANCE for the first time."""
    series = [logs[name]["train/loss"] for name in RUNS]
    count = 0
    for (step, ours), (_, stock) in zip(*series, strict=False):
        if abs(ours - stock) > TOLERANCE * abs(stock):
            break
        count = step + 1
    return count


def test(checkpoint: Path, arguments: list[str]) -> float:
    """The accuracy of a finished run's network on the test split."""
    folder = checkpoint.parent.parent
    status = runs.command(NAME, "test", folder, [*arguments, "--ckpt_path", str(checkpoint)])
    if status:
        sys.exit(f"{NAME} test, of {checkpoint}, ended with status {status}")
    return runs.read_last(folder)["test/accuracy"][-1][1]


def draw(curves: list[summary.Curves], record: dict[str, Any], path: Path) -> None:
    """For each batch the losses over steps, below them over time; a column for each features.

    Args:
        curves: of each of the record's rows.
        record: of all sizes.
        path: of the picture.
    """
    rows = record["rows"]
    batches = list(dict.fromkeys(row["B"] for row in rows))
    features = list(dict.fromkeys(row["features"] for row in rows))
    figure, axes = recording.pyplot().subplots(
        2 * len(batches), len(features), sharey=True, squeeze=False, layout="constrained",
        figsize=(max(4 * len(features), 6.5), 5.4 * len(batches)),
    )  # fmt: skip
    for row, curve in zip(rows, curves, strict=True):
        line, column = 2 * batches.index(row["B"]), features.index(row["features"])
        by_step, by_time = axes[line, column], axes[line + 1, column]
        plots.losses(by_step, by_time, curve)
        gap = f"within 1e-4 for {row['steps_together']:,} of {compared(row):,} steps"
        size = f"{row['features']}: T = {row['T']:,}, B = {row['B']}"
        by_step.set(xlabel="step", title=f"{size}\n{gap}")
        by_time.set(xlabel="seconds", xscale="log")
        ratio = times(row["speed_up"]["training"])
        by_time.set_title(f"{ratio} as fast; test accuracy {row['test_accuracy']:.0%}")
        by_step.locator_params(axis="x", nbins=4)
        by_time.minorticks_off()
        for each in (by_step, by_time):
            each.grid(alpha=0.3)
    figure.supylabel("training loss (running mean)")
    axes[0, 0].legend()
    figure.suptitle("GRU of 20 states on rendered instruments, by scan and by stock PyTorch")
    recording.save_figure(figure, path, record["environment"])


if __name__ == "__main__":
    main()
