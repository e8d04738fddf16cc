"""Pictures of two runs: the losses over steps, where they should coincide, and over time."""

from pathlib import Path
from typing import Any

from experiments import recording, style
from experiments.compare.summary import Curves, in_words

COLOURS = {"bppsa": style.OURS, "stock": style.STOCK}


def training(curves: Curves, summary: dict[str, Any], path: Path) -> None:
    """Both losses of a training; `summary` is its record."""
    figure, (by_step, by_time) = _panels()
    losses(by_step, by_time, curves)
    gap = summary["largest_relative_loss_difference"]
    by_step.set_title(f"Losses at most {gap:.0e} apart (relative)")
    ratio = summary["speed_up"]["training"]
    by_time.set(xlabel="seconds of training", title=in_words(ratio))
    if not 1 / 20 < ratio < 20:
        by_time.set_xscale("log")
    _finish(figure, path, summary, summary.get("name", summary["experiment"]))


def pruned(curves: Curves, summary: dict[str, Any], path: Path) -> None:
    """Both losses of a network that is pruned and retrained, on a log scale."""
    figure, (by_step, by_time) = _panels()
    losses(by_step, by_time, curves)
    by_step.axvline(summary["pruned_at_step"], color="grey", lw=0.8, ls=":")
    gap, ratio = summary["largest_loss_difference"], summary["speed_up"]["step"]
    by_step.set(title=f"{summary['sparsity']:.0%} pruned at the dotted line", yscale="log")
    by_time.set(xlabel="seconds", title=f"A step of retraining {ratio:.1f}x faster", yscale="log")
    title = f"{summary['experiment']}: losses differ by at most {gap:.0e} of the largest"
    _finish(figure, path, summary, title)


def losses(by_step: Any, by_time: Any, curves: Curves) -> None:
    """Both curves over steps and over seconds of training."""
    for name, curve in curves.items():
        look = {"color": COLOURS[name], "label": name, "zorder": 3 if name == "bppsa" else 2}
        # The stock curve lies under a dashed one, or a curve that coincides would hide it.
        look |= {"lw": 1.2, "ls": "--"} if name == "bppsa" else {"lw": 3, "alpha": 0.45}
        by_step.plot(curve["step"], curve["loss"], **look)
        by_time.plot(curve["seconds"], curve["loss"], **look | {"ls": "-"})


def _panels() -> tuple[Any, Any]:
    figure, axes = recording.pyplot().subplots(1, 2, figsize=(10, 4), sharey=True, layout="tight")
    axes[0].set(xlabel="step", ylabel="training loss (running mean)")
    axes[0].locator_params(axis="x", nbins=6)  # or long numbers touch
    return figure, axes


def _finish(figure: Any, path: Path, summary: dict[str, Any], title: str) -> None:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    recording.save_figure(figure, path, summary["environment"])
