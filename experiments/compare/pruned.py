"""The same for a network that is pruned and retrained: seconds before and after, loss gap.

Losses are compared on the scale of the largest one: after the pruning, two runs that round
differently reach the same loss along paths a little apart.
"""

from statistics import median
from typing import Any

from experiments.compare.summary import (
    PARTS,
    RUNS,
    Log,
    Series,
    final_loss,
    forward_backward,
    parts_of,
    values,
)

SETTLING = 3  # steps after the start and after the pruning that are not counted


def summarise(logs: dict[str, Log]) -> dict[str, Any]:
    """Loss, accuracy, median seconds a step before and after the pruning; speed-ups; loss gap."""
    pruned_at, sparsity = logs["bppsa"]["pruning/sparsity"][0]
    steps = {"dense": (SETTLING, pruned_at), "pruned": (pruned_at + SETTLING, float("inf"))}
    summary: dict[str, Any] = {"pruned_at_step": pruned_at, "sparsity": sparsity}
    for name, log in logs.items():
        summary[name] = {
            "final_train_loss": final_loss(log),
            "val_loss": values(log["val/loss"])[-1],
            "val_accuracy": values(log["val/accuracy"])[-1],
            "seconds": {
                when: {part: seconds(log[f"seconds/{part}"], *between) for part in PARTS}
                for when, between in steps.items()
            },
        }
    ours, stock = (summary[name]["seconds"]["pruned"] for name in RUNS)
    summary["speed_up"] = {part: stock[part] / ours[part] for part in PARTS}
    ratio = forward_backward(stock) / forward_backward(ours)
    summary["speed_up"]["forward_and_backward"] = ratio
    pairs = zip(*(values(logs[name]["train/loss"]) for name in RUNS), strict=True)
    scale = max(values(logs["stock"]["train/loss"]))
    summary["largest_loss_difference"] = max(abs(a - b) for a, b in pairs) / scale
    return summary


def seconds(series: Series, first: int, last: float) -> float:
    """The median over the steps from `first` up to `last`."""
    return median(value for step, value in series if first <= step < last)


def table(summary: dict[str, Any]) -> str:
    """A summary as lines of text, a run each."""
    parts = parts_of(summary)
    columns = "".join(f"{name:>11}" for name in parts)
    lines = [f"{'retraining':10}{'loss':>9}{'val acc':>9}{columns}"]
    for name in RUNS:
        run = summary[name]
        step = run["seconds"]["pruned"]
        cells = "".join(f"{step[part] * 1e3:>8.2f} ms" for part in parts)
        lines.append(f"{name:10}{run['final_train_loss']:>9.4f}{run['val_accuracy']:>9.1%}{cells}")
    ratios = "".join(f"{summary['speed_up'][part]:>10.1f}x" for part in parts)
    lines.append(f"{'speed-up':28}{ratios}")
    gap = summary["largest_loss_difference"]
    lines.append(
        f"sparsity {summary['sparsity']:.2%}; the loss curves differ by at most {gap:.1e} of the "
        "largest loss"
    )
    return "\n".join(lines)
