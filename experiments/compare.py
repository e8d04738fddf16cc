"""Trains one experiment twice from the same seed, by scan and by stock PyTorch, and compares.

    python experiments/compare.py bitstream_rnn [arguments of its `fit`]

Each run is a process of its own. Writes runs/<experiment>/{bppsa,stock}/ (logs, checkpoints),
runs/<experiment>/curve.png (loss over steps: the curves should coincide; loss over wall-clock
time) and summary.json, and prints a table. `--record` keeps picture and summary in
experiments/records/ too.
"""

import argparse
import csv
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

import record

HERE = Path(__file__).parent
RUNS = {"bppsa": None, "stock": "auto"}  # name: value of --trainer.strategy, if not the YAML's
COLOURS = {"bppsa": "#0072b2", "stock": "#d55e00"}
PARTS = ("forward", "backward", "optimizer", "rest", "step")
FINAL = 20  # logged losses averaged for the final one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("experiment", help="name of a file in experiments/, such as bitstream_rnn")
    parser.add_argument("--record", action="store_true", help="keep results in experiments/records")
    add_stock_steps(parser)
    arguments, fit_arguments = parser.parse_known_args()
    script = HERE / f"{arguments.experiment}.py"
    if not script.is_file():
        parser.error(f"experiment: found {arguments.experiment!r}, wanted a file {script}")

    folder = Path("runs") / arguments.experiment
    logs = pair(script, folder, fit_arguments, arguments.stock_steps)
    summary = summarise(logs)
    draw(logs, summary, folder / "curve.png", arguments.experiment)
    results = {"experiment": arguments.experiment, "arguments": fit_arguments, **summary}
    record.write(folder / "summary.json", results)
    if arguments.record:
        record.write(record.RECORDS / f"{arguments.experiment}.json", results)
        shutil.copy(folder / "curve.png", record.RECORDS / f"{arguments.experiment}.png")
    print(table(summary))
    print(f"\ncurves: {folder / 'curve.png'}   summary: {folder / 'summary.json'}")


def add_stock_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stock-steps", type=int, metavar="N",
        help="train stock PyTorch for the first N steps alone: the curves are compared over these, "
        "and it has no accuracy (default: the whole training)",
    )  # fmt: skip


def pair(
    script: Path, folder: Path, arguments: list[str], stock_steps: int | None = None
) -> dict[str, dict]:
    """The logs of an experiment trained by scan and by stock PyTorch.

    Args:
        script: the experiment.
        folder: gets bppsa/ and stock/; earlier results there are removed.
        arguments: of its `fit`.
        stock_steps: where stock PyTorch stops; None for the whole training.
    """
    logs = {}
    for name, strategy in RUNS.items():
        print(f"--- {script.stem}: {name}", flush=True)
        shorter = stock_steps is not None and name == "stock"
        limit = ["--trainer.max_steps", str(stock_steps)] if shorter else []
        train(script, folder / name, strategy, [*arguments, *limit])
        logs[name] = read_run(folder / name)
    return logs


def train(
    script: Path,
    folder: Path,
    strategy: str | None,
    arguments: list[str],
    defaults: Path | None = None,
) -> None:
    """One run, with the experiment's YAML moved to `folder`; earlier results there are removed.

    `defaults` is that YAML, if it is not the one beside the script; `strategy` takes the place of
    the one that it names.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = folder / "defaults.yaml"
    text = (defaults or script.with_suffix(".yaml")).read_text()
    config.write_text(text.replace(f"runs/{script.stem}", folder.as_posix()))
    command = [sys.executable, str(script), "fit", "--config", str(config)]
    command += ["--trainer.strategy", strategy] if strategy else []
    command += arguments
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{script.name}, to {folder}, ended with status {error.returncode}")
    except KeyboardInterrupt:
        sys.exit(f"\ninterrupted; run the same command again to start {script.stem} afresh")


def read_run(folder: Path, version: int = 0) -> dict[str, list[tuple[int, float]]]:
    """The metrics of a run in `folder`; later subcommands there have later versions."""
    return read(folder / "csv" / f"version_{version}" / "metrics.csv")


def read(path: Path) -> dict[str, list[tuple[int, float]]]:
    """{metric: [(step, value), …]} of a CSVLogger's file."""
    series: dict[str, list[tuple[int, float]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name not in ("step", "epoch"):
                    series.setdefault(name, []).append((int(row["step"]), float(value)))
    return series


def values(series: list[tuple[int, float]]) -> list[float]:
    return [value for _, value in series]


def summarise(logs: dict[str, dict]) -> dict[str, dict]:
    """Final loss, accuracy and median seconds a step of each run; speed-ups; largest loss gap.

    Where stock PyTorch stopped early, the two are compared over its steps, and it has neither a
    final loss nor an accuracy.
    """
    summary: dict[str, dict] = {}
    last = {name: log["train/loss"][-1][0] for name, log in logs.items()}
    for name, log in logs.items():
        whole = last[name] == last["bppsa"]
        summary[name] = {
            "final_train_loss": mean(values(log["train/loss"])[-FINAL:]) if whole else None,
            "val_loss": values(log["val/loss"])[-1] if whole else None,
            "val_accuracy": values(log["val/accuracy"])[-1] if whole else None,
            "seconds": {part: median(values(log[f"seconds/{part}"])) for part in PARTS},
            "seconds_of_training": values(log["seconds/elapsed"])[-1],
        }
    ours, stock = (summary[name]["seconds"] for name in RUNS)
    summary["speed_up"] = {part: stock[part] / ours[part] for part in PARTS}
    elapsed = [dict(logs[name]["seconds/elapsed"])[last["stock"]] for name in RUNS]
    summary["speed_up"]["training"] = elapsed[1] / elapsed[0]
    pairs = list(zip(*(until(logs[n]["train/loss"], last["stock"]) for n in RUNS), strict=True))
    summary["largest_relative_loss_difference"] = max(abs(a - b) / abs(b) for a, b in pairs)
    if last["stock"] != last["bppsa"]:
        summary["stock_steps"] = last["stock"] + 1
    return summary


def until(series: list[tuple[int, float]], last: int) -> list[float]:
    """The values up to a step."""
    return [value for step, value in series if step <= last]


def parts_of(summary: dict) -> list[str]:
    """The parts of a step that a summary has; older records have fewer."""
    return [part for part in PARTS if part in summary["speed_up"]]


def table(summary: dict[str, dict]) -> str:
    parts = parts_of(summary)
    columns = "".join(f"{name:>11}" for name in (*parts, "training"))
    lines = [f"{'':7}{'loss':>9}{'val acc':>9}{columns}"]
    for name in RUNS:
        run = summary[name]
        seconds = "".join(f"{run['seconds'][part] * 1e3:>8.2f} ms" for part in parts)
        final = "".join(
            f"{'-':>9}" if run[key] is None else f"{run[key]:>9{form}}"
            for key, form in (("final_train_loss", ".4f"), ("val_accuracy", ".1%"))
        )
        lines.append(f"{name:7}{final}{seconds}{run['seconds_of_training']:>9.1f} s")
    ratios = "".join(f"{times(summary['speed_up'][part]):>11}" for part in (*parts, "training"))
    lines.append(f"{'speed-up':25}{ratios}")
    gap = summary["largest_relative_loss_difference"]
    over = f" over the {summary['stock_steps']} steps of stock" if "stock_steps" in summary else ""
    lines.append(f"largest relative difference between the two loss curves{over}: {gap:.1e}")
    return "\n".join(lines)


def times(ratio: float) -> str:
    """7.7x, 0.012x: two digits, one of them after the point at least."""
    return f"{ratio:.1f}x" if ratio >= 0.95 else f"{ratio:.2g}x"


def draw(logs: dict[str, dict], summary: dict[str, dict], path: Path, title: str) -> None:
    figure, (by_step, by_time) = record.pyplot().subplots(
        1, 2, figsize=(10, 4), sharey=True, layout="tight"
    )
    draw_losses(by_step, by_time, logs)
    gap = summary["largest_relative_loss_difference"]
    title_by_step = f"Losses at most {gap:.0e} apart (relative)"
    by_step.set(xlabel="step", ylabel="training loss (running mean)", title=title_by_step)
    ratio = summary["speed_up"]["training"]
    by_time.set(xlabel="seconds of training", title=in_words(ratio))
    if not 1 / 20 < ratio < 20:
        by_time.set_xscale("log")
    for axes in (by_step, by_time):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    record.save_figure(figure, path, dpi=130)


def draw_losses(by_step: Any, by_time: Any, logs: dict[str, dict]) -> None:
    """Both curves over steps and over seconds of training."""
    for name, log in logs.items():
        style = {"color": COLOURS[name], "label": name}
        # The stock curve lies under a dashed one, or a curve that coincides would hide it.
        style |= {"lw": 1.2, "ls": "--"} if name == "bppsa" else {"lw": 3, "alpha": 0.45}
        order = {"zorder": 3 if name == "bppsa" else 2}
        smooth = running_mean(values(log["train/loss"]))
        by_step.plot([step for step, _ in log["train/loss"]], smooth, **style, **order)
        by_time.plot(values(log["seconds/elapsed"]), smooth, **style | {"ls": "-"}, **order)


def in_words(ratio: float) -> str:
    """Who trains faster: stock's time over ours."""
    if ratio >= 1:
        return f"The same training in {ratio:.1f}x less time"
    return f"The same training takes {times(1 / ratio)} as long"


def running_mean(series: list[float], window: int = 15) -> list[float]:
    return [mean(series[max(0, i - window + 1) : i + 1]) for i in range(len(series))]


if __name__ == "__main__":
    main()
