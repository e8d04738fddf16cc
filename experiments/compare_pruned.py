"""Prunes and retrains VGG-11 twice from the same seed, by surviving weights and dense-masked.

    python experiments/compare_pruned.py [--record] [arguments of pruned_vgg11.py's `fit`]

Each run is a process of its own: `SparseJacobianPruning` under strategy "bppsa", and Lightning's
`ModelPruning` under its own strategy. Writes runs/pruned_vgg11/{bppsa,stock}/ (logs, checkpoints),
curve.png and summary.json there, and prints a table. `--record` keeps both in experiments/records/.
"""

import argparse
import shutil
from pathlib import Path
from statistics import median

import compare
import record

EXPERIMENT = "pruned_vgg11"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="keep results in experiments/records")
    arguments, fit_arguments = parser.parse_known_args()
    script = compare.HERE / f"{EXPERIMENT}.py"
    folder = Path("runs") / EXPERIMENT
    logs = {}
    for name, strategy in compare.RUNS.items():
        print(f"--- {EXPERIMENT}: {name}", flush=True)
        defaults = None if name == "bppsa" else with_stock_pruning(script, folder)
        compare.train(script, folder / name, strategy, fit_arguments, defaults)
        logs[name] = compare.read(folder / name / "csv" / "version_0" / "metrics.csv")
    summary = summarise(logs)
    draw(logs, summary, folder / "curve.png")
    results = {"experiment": EXPERIMENT, "arguments": fit_arguments, **summary}
    record.write(folder / "summary.json", results)
    if arguments.record:
        record.write(record.RECORDS / f"{EXPERIMENT}.json", results)
        shutil.copy(folder / "curve.png", record.RECORDS / f"{EXPERIMENT}.png")
    print(table(summary))
    print(f"\ncurves: {folder / 'curve.png'}   summary: {folder / 'summary.json'}")


def with_stock_pruning(script: Path, folder: Path) -> Path:
    """The experiment's YAML with the other callback."""
    text = script.with_suffix(".yaml").read_text()
    changed = text.replace("bppsa_lightning.SparseJacobianPruning", "stock_pruning.StockPruning")
    assert changed != text
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "stock.yaml"
    path.write_text(changed)
    return path


def summarise(logs: dict[str, dict]) -> dict:
    """Loss, accuracy, median seconds a step before and after the pruning; speed-ups; loss gap."""
    pruned_at = logs["bppsa"]["pruning/sparsity"][0][0]
    summary: dict = {"pruned_at_step": pruned_at}
    summary["sparsity"] = logs["bppsa"]["pruning/sparsity"][0][1]
    for name, log in logs.items():
        summary[name] = {
            "final_train_loss": sum(compare.values(log["train/loss"])[-20:]) / 20,
            "val_loss": compare.values(log["val/loss"])[-1],
            "val_accuracy": compare.values(log["val/accuracy"])[-1],
            "seconds": {
                when: {part: seconds(log[f"seconds/{part}"], *steps) for part in compare.PARTS}
                for when, steps in {
                    "dense": (3, pruned_at),
                    "pruned": (pruned_at + 3, float("inf")),
                }.items()
            },
        }
    pairs = zip(*(compare.values(logs[n]["train/loss"]) for n in compare.RUNS), strict=True)
    ours, stock = (summary[name]["seconds"]["pruned"] for name in compare.RUNS)
    summary["speed_up"] = {part: stock[part] / ours[part] for part in compare.PARTS}
    both = {name: s["forward"] + s["backward"] for name, s in (("o", ours), ("s", stock))}
    summary["speed_up"]["forward_and_backward"] = both["s"] / both["o"]
    scale = max(compare.values(logs["stock"]["train/loss"]))
    summary["largest_loss_difference"] = max(abs(a - b) for a, b in pairs) / scale
    return summary


def seconds(series: list[tuple[int, float]], first: int, last: float) -> float:
    return median(value for step, value in series if first <= step < last)


def table(summary: dict) -> str:
    parts = compare.parts_of(summary)
    columns = "".join(f"{name:>11}" for name in parts)
    lines = [f"{'retraining':10}{'loss':>9}{'val acc':>9}{columns}"]
    for name in compare.RUNS:
        run = summary[name]
        seconds = run["seconds"]["pruned"]
        times = "".join(f"{seconds[part] * 1e3:>8.2f} ms" for part in parts)
        lines.append(f"{name:10}{run['final_train_loss']:>9.4f}{run['val_accuracy']:>9.1%}{times}")
    ratios = "".join(f"{summary['speed_up'][part]:>10.1f}x" for part in parts)
    lines.append(f"{'speed-up':28}{ratios}")
    gap = summary["largest_loss_difference"]
    lines.append(
        f"sparsity {summary['sparsity']:.2%}; the loss curves differ by at most {gap:.1e} of the "
        "largest loss"
    )
    return "\n".join(lines)


def draw(logs: dict[str, dict], summary: dict, path: Path) -> None:
    figure, (by_step, by_time) = record.pyplot().subplots(
        1, 2, figsize=(10, 4), sharey=True, layout="tight"
    )
    for name, log in logs.items():
        style = {"color": compare.COLOURS[name], "label": name}
        style |= {"lw": 1.2, "ls": "--"} if name == "bppsa" else {"lw": 3, "alpha": 0.45}
        smooth = compare.running_mean(compare.values(log["train/loss"]))
        by_step.plot([step for step, _ in log["train/loss"]], smooth, **style)
        by_time.plot(compare.values(log["seconds/elapsed"]), smooth, **style | {"ls": "-"})
    by_step.axvline(summary["pruned_at_step"], color="grey", lw=0.8, ls=":")
    gap, ratio = summary["largest_loss_difference"], summary["speed_up"]["step"]
    by_step.set(
        xlabel="step",
        ylabel="training loss (running mean)",
        title=f"{summary['sparsity']:.0%} pruned at the dotted line",
    )
    by_time.set(xlabel="seconds", title=f"A step of retraining {ratio:.1f}x faster")
    for axes in (by_step, by_time):
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"VGG-11, pruned and retrained: losses at most {gap:.0e} apart")
    record.save_figure(figure, path, dpi=130)


if __name__ == "__main__":
    main()
