"""Two runs of one experiment in numbers: losses, accuracies, seconds a step, speed-ups, loss gap.

A log is {metric: [(step, value), …]}; the logs of an experiment are {run: log}, in the order of
RUNS. Plain Python: the page of the records reads summaries without torch.
"""

from statistics import mean, median
from typing import Any

RUNS = ("bppsa", "stock")
PARTS = ("forward", "backward", "optimizer", "rest", "step")
FINAL = 20  # logged losses averaged for the final one

CURVE_POINTS = 500  # at most, of a curve that is kept to be drawn

Series = list[tuple[int, float]]
Log = dict[str, Series]
Curves = dict[str, dict[str, list[float]]]


def summarise(logs: dict[str, Log]) -> dict[str, Any]:
    """Final loss, accuracy and median seconds a step of each run; speed-ups; largest loss gap.

    Where stock PyTorch stopped early, the two are compared over its steps, and it has neither a
    final loss nor an accuracy.
    """
    summary: dict[str, Any] = {}
    last = {name: log["train/loss"][-1][0] for name, log in logs.items()}
    for name, log in logs.items():
        whole = last[name] == last["bppsa"]
        summary[name] = {
            "final_train_loss": final_loss(log) if whole else None,
            "val_loss": values(log["val/loss"])[-1] if whole else None,
            "val_accuracy": values(log["val/accuracy"])[-1] if whole else None,
            "seconds": {part: median(values(log[f"seconds/{part}"])) for part in PARTS},
            "seconds_of_training": values(log["seconds/elapsed"])[-1],
        }
    ours, stock = (summary[name]["seconds"] for name in RUNS)
    summary["speed_up"] = {part: stock[part] / ours[part] for part in PARTS}
    elapsed = [dict(logs[name]["seconds/elapsed"])[last["stock"]] for name in RUNS]
    summary["speed_up"]["training"] = elapsed[1] / elapsed[0]
    scanned, wanted = (dict(logs[name]["train/loss"]) for name in RUNS)
    summary["largest_relative_loss_difference"] = max(
        abs(scanned[step] - loss) / abs(loss) for step, loss in wanted.items() if step in scanned
    )
    if last["stock"] != last["bppsa"]:
        summary["stock_steps"] = last["stock"] + 1
    return summary


def final_loss(log: Log) -> float:
    """The mean of the last FINAL logged losses."""
    return mean(values(log["train/loss"])[-FINAL:])


def values(series: Series) -> list[float]:
    """The values alone."""
    return [value for _, value in series]


def running_mean(series: list[float], window: int = 15) -> list[float]:
    """Means over the last `window` values, over fewer at the beginning."""
    return [mean(series[max(0, i - window + 1) : i + 1]) for i in range(len(series))]


def curves(logs: dict[str, Log], points: int = CURVE_POINTS) -> Curves:
    """{run: {"step", "seconds", "loss"}} of equally long lists: what a picture of both runs needs.

    Losses are running means, of steps as far apart as leaves so many `points` at most; seconds are
    those since the start of the training.
    """
    found: Curves = {}
    for name, log in logs.items():
        losses = log["train/loss"]
        every = max(1, -(-len(losses) // points))
        found[name] = {
            "step": [step for step, _ in losses[::every]],
            "seconds": [float(f"{s:.6g}") for s in values(log["seconds/elapsed"])[::every]],
            "loss": [float(f"{loss:.6g}") for loss in running_mean(values(losses))[::every]],
        }
    return found


def parts_of(summary: dict[str, Any]) -> list[str]:
    """The parts of a step that a summary has; older records have fewer."""
    return [part for part in PARTS if part in summary["speed_up"]]


def table(summary: dict[str, Any]) -> str:
    """A summary as lines of text, a run each."""
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


def forward_backward(seconds: dict[str, float]) -> float:
    """Seconds of forward and backward together."""
    return seconds["forward"] + seconds["backward"]


def times(ratio: float) -> str:
    """7.7x, 0.012x: two digits, one of them after the point at least."""
    return f"{ratio:.1f}x" if ratio >= 0.95 else f"{ratio:.2g}x"


def in_words(ratio: float) -> str:
    """Who trains faster: stock's time over ours."""
    if ratio >= 1:
        return f"The same training in {ratio:.1f}x less time"
    return f"The same training takes {times(1 / ratio)} as long"
