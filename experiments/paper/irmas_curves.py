"""The paper's training curves of its GRU: features S, M and L, by scan and by stock PyTorch.

    python experiments/irmas_curves.py                      # B = 16, as in the paper: 35 minutes
    python experiments/irmas_curves.py --batches 16 32 64   # 75 minutes
    python experiments/irmas_curves.py --stock-steps 1000   # of stock, the beginning: 10 minutes
    python experiments/irmas_curves.py --data.per_class 30  # any argument of irmas_gru.py's `fit`

Each size is trained as `compare.py irmas_gru` does, into runs/irmas_curves/<features><batch>; then
the network that was trained by scan is tested on the excerpts set aside. Writes
experiments/records/irmas_gru.json, a row for each size, and irmas_gru.png. T frames, F features.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import compare
import record
import torch

from bppsa_lightning.datasets.irmas_features import SETTINGS

SCRIPT = compare.HERE / "irmas_gru.py"
NAME = "irmas_gru"
TOLERANCE = 1e-4  # relative, of losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--features", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--batches", nargs="+", type=int, default=[16], metavar="B")
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep the record's rows of other sizes, from earlier runs",
    )
    compare.add_stock_steps(parser)
    arguments, fit_arguments = parser.parse_known_args()
    path = record.RECORDS / f"{NAME}.json"
    rows = json.loads(path.read_text())["rows"] if arguments.add and path.is_file() else []
    for batch in arguments.batches:
        for features in arguments.features:
            print(f"=== features {features}, {batch} excerpts a batch", flush=True)
            row = measure(features, batch, fit_arguments, arguments.stock_steps)
            others = [r for r in rows if (r["features"], r["B"]) != (features, batch)]
            rows = sorted([*others, row], key=lambda r: (r["B"], r["T"]))
            print(compare.table(row), flush=True)
            # After each size: a run that is stopped is continued with --add.
            record.write(path, {"experiment": NAME, "rows": rows})
    draw(rows, [logs_of(row["features"], row["B"]) for row in rows], path.with_suffix(".png"))
    print(f"{table(rows)}\n\nrecord: {path}, .png")


def folder_of(features: str, batch: int) -> Path:
    return Path("runs") / Path(__file__).stem / f"{features}{batch}"


def logs_of(features: str, batch: int) -> dict[str, dict]:
    folder = folder_of(features, batch)
    return {name: compare.read_run(folder / name) for name in compare.RUNS}


def measure(
    features: str, batch: int, arguments: list[str], stock_steps: int | None
) -> dict[str, Any]:
    """A size's row of the record."""
    sizes = ["--data.features", features, "--data.batch_size", str(batch)]
    folder = folder_of(features, batch)
    logs = compare.pair(SCRIPT, folder, [*sizes, *arguments], stock_steps)
    checkpoint = folder / "bppsa" / "checkpoints" / "last.ckpt"
    data = torch.load(checkpoint, weights_only=True)["datamodule_hyper_parameters"]
    return {
        "features": features,
        "T": SETTINGS[features].frames,
        "F": SETTINGS[features].features,
        "B": batch,
        "per_class": data.get("per_class"),
        "threads": torch.get_num_threads(),
        "arguments": sys.argv[1:],
        "steps": logs["bppsa"]["train/loss"][-1][0] + 1,
        **compare.summarise(logs),
        "train_accuracy": mean(compare.values(logs["bppsa"]["train/accuracy"])[-compare.FINAL :]),
        "steps_together": together(logs),
        "test_accuracy": test(checkpoint, [*sizes, *arguments]),
    }


def together(logs: dict[str, dict]) -> int:
    """The steps until the two losses differ by more than TOLERANCE for the first time."""
    series = [logs[name]["train/loss"] for name in compare.RUNS]
    count = 0
    for (step, ours), (_, stock) in zip(*series, strict=False):
        if abs(ours - stock) > TOLERANCE * abs(stock):
            break
        count = step + 1
    return count


def test(checkpoint: Path, arguments: list[str]) -> float:
    """The accuracy of a finished run's network on the test split."""
    folder = checkpoint.parent.parent
    command = [sys.executable, str(SCRIPT), "test", "--config", str(folder / "defaults.yaml")]
    done = subprocess.run([*command, *arguments, "--ckpt_path", str(checkpoint)])
    if done.returncode:
        sys.exit(f"{SCRIPT.name} test, of {checkpoint}, ended with status {done.returncode}")
    return compare.read_run(folder, version=1)["test/accuracy"][-1][1]


def table(rows: list[dict[str, Any]]) -> str:
    """A line of Markdown for each size."""
    head = (
        "| features | T | B | excerpts an instrument | validation | test "
        "| ours: forward + backward | step | stock: forward + backward | step "
        "| forward + backward | step | curves within 1e-4 |"
    )
    lines = [head, "|---" * 13 + "|"]
    for row in rows:
        seconds = [row[name]["seconds"] for name in compare.RUNS]
        times = [ms(s) for part in seconds for s in (both(part), part["step"])]
        ratios = [compare.times(both(seconds[1]) / both(seconds[0]))]
        ratios.append(compare.times(row["speed_up"]["step"]))
        gap = f"{row['steps_together']:,} of {compared(row):,} steps"
        accuracies = [f"{row['bppsa']['val_accuracy']:.0%}", f"{row['test_accuracy']:.0%}"]
        cells = [
            row["features"],
            f"{row['T']:,}",
            row["B"],
            row["per_class"],
            *accuracies,
            *times,
            *ratios,
            gap,
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def both(seconds: dict[str, float]) -> float:
    """Of forward and backward."""
    return seconds["forward"] + seconds["backward"]


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def compared(row: dict[str, Any]) -> int:
    """The steps over which the two curves are compared."""
    return row.get("stock_steps", row["steps"])


def draw(rows: list[dict[str, Any]], logs: list[dict[str, dict]], path: Path) -> None:
    """For each batch the losses over steps, below them over time; a column for each features."""
    batches = list(dict.fromkeys(row["B"] for row in rows))
    features = list(dict.fromkeys(row["features"] for row in rows))
    figure, axes = record.pyplot().subplots(
        2 * len(batches), len(features), sharey=True, squeeze=False, layout="constrained",
        figsize=(max(4 * len(features), 6.5), 5.4 * len(batches)),
    )  # fmt: skip
    for row, log in zip(rows, logs, strict=True):
        line, column = 2 * batches.index(row["B"]), features.index(row["features"])
        by_step, by_time = axes[line, column], axes[line + 1, column]
        compare.draw_losses(by_step, by_time, log)
        gap = f"within 1e-4 for {row['steps_together']:,} of {compared(row):,} steps"
        size = f"{row['features']}: T = {row['T']:,}, B = {row['B']}"
        by_step.set(xlabel="step", title=f"{size}\n{gap}")
        by_time.set(xlabel="seconds of training", xscale="log")
        ratio = compare.times(row["speed_up"]["training"])
        by_time.set_title(f"{ratio} as fast; test accuracy {row['test_accuracy']:.0%}")
        for each in (by_step, by_time):
            each.grid(alpha=0.3)
    for each in axes[:, 0]:
        each.set_ylabel("training loss (running mean)")
    axes[0, 0].legend()
    figure.suptitle("GRU of 20 states on rendered instruments, by scan and by stock PyTorch")
    record.save_figure(figure, path, dpi=110)


if __name__ == "__main__":
    main()
