"""The picture of a recurrent benchmark's record: sweeps, a grid, or a bar for each row.

    python -m experiments.benchmarks.recurrent_plots experiments/records/nvidia_h100.json

prints the table of a record and draws its picture beside it, on any machine.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments import recording, style
from experiments.benchmarks import grid_plot
from experiments.benchmarks.recurrent_cases import PARTS
from experiments.benchmarks.recurrent_report import Row, table

# Of the paper's sweeps, those that a row belongs to: the letter that varies, and the others' sizes.
SWEEPS: dict[str, dict[str, int]] = {
    "T": {"B": 16, "H": 20}, "B": {"T": 1000, "H": 20}, "H": {"B": 16, "T": 1000},
}  # fmt: skip
NAMES = {"T": "sequence length", "B": "batch size", "H": "hidden size"}
WORDS = {"forward": "forward", "backward": "backward", "both": "forward + backward"}
MOST_BARS = 40  # of a cell; more are a grid
Size = tuple[int, int, int, int]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("record", type=Path, help="a .json of recurrent_cpu or recurrent_gpu")
    return parser


def main(arguments: list[str] | None = None) -> None:
    path = parser().parse_args(arguments).record
    results = json.loads(path.read_text())
    print(table(results["rows"]))
    draw(results, path.with_suffix(".png"))
    print(f"picture: {path.with_suffix('.png')}")


def draw(record: dict[str, Any], path: Path) -> None:
    """Sweeps where rows are enough for one; a grid of many; otherwise a bar a row.

    Without matplotlib: nothing.
    """
    try:
        recording.pyplot()
    except ImportError:
        print("no picture: matplotlib is not installed; recurrent_plots.py draws it elsewhere")
        return
    rows = record["rows"]
    if any(row.get("plans") for row in rows):
        figure = _sweeps(rows, record.get("training"))
    elif len(rows) > MOST_BARS * len({row["cell"] for row in rows}):
        figure = grid_plot.draw(rows)
    else:
        figure = _bars(rows)
    recording.save_figure(figure, path, record["environment"])


def _sweeps(rows: Sequence[Row], training: dict[str, Any] | None) -> Any:
    """Stock's time over ours, by T, by B, by H: of the layer as attached, and of the best plan."""
    rows = [row for row in rows if "stock" in row]
    figure, axes = recording.pyplot().subplots(
        3, 3, figsize=(12.5, 10), layout="constrained", sharey="row"
    )
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    for column, (letter, others) in enumerate(SWEEPS.items()):
        swept = [row for row in rows if _belongs(row, others)]
        sizes = sorted({row[letter] for row in swept})
        for panels, part in zip(axes, PARTS, strict=True):
            panel = panels[column]
            for place, cell in enumerate(cells):
                mine = sorted((r for r in swept if r["cell"] == cell), key=lambda r: r[letter])
                # Side by side, so that no mark hides another.
                places = [sizes.index(r[letter]) + 0.14 * (place - 1) for r in mine]
                _sweep(panel, places, mine, part, cell)
            panel.axhline(1, color="black", linewidth=0.8)
            if sizes:
                panel.set_yscale("log")
                panel.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes], fontsize=8)
            panel.grid(alpha=0.3)
        fixed = ", ".join(f"{name} = {size:,}" for name, size in others.items())
        axes[0, column].set_title(f"by {NAMES[letter]}, at {fixed}")
        axes[-1, column].set_xlabel(f"{NAMES[letter]} {letter}")
    for panels, part in zip(axes, PARTS, strict=True):
        panels[0].set_ylabel(f"{WORDS[part]}: stock's time / ours")
        _ticks(panels)
    handles: dict[str, Any] = {}
    for panel in axes.flat:
        handles |= dict(_labelled(panel))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6)
    if training:
        figure.suptitle(
            f"A training step through Trainer, RNN (16, 1000, 20): {training['ratio']:.2f}×"
        )
    return figure


def _labelled(panel: Any) -> Iterator[tuple[str, Any]]:
    handles, labels = panel.get_legend_handles_labels()
    return zip(labels, handles, strict=True)


def _ticks(panels: Sequence[Any]) -> None:
    """Of panels that share their ratios: at 1, 2, 5, 10 times, …."""
    low, high = panels[0].get_ylim()
    ratios = [m * 10.0**e for e in range(-2, 4) for m in (1, 2, 5)]
    for panel in panels:
        panel.set_yticks(ratios, [f"{ratio:g}×" for ratio in ratios], fontsize=8)
        panel.minorticks_off()
    panels[0].set_ylim(low, high)


def _belongs(row: Row, others: dict[str, int]) -> bool:
    return all(row[letter] == size for letter, size in others.items())


def _sweep(panel: Any, places: list[float], rows: list[Row], part: str, cell: str) -> None:
    colour, marker = style.CELLS[cell]
    best = [row["stock"][part] / row["plans"][row["best"]][part] for row in rows]
    panel.plot(places, best, "--", marker=marker, ms=6, color=colour, linewidth=1, mec="white",
               mew=0.6, label=f"{cell}, the best plan's operator alone")  # fmt: skip
    attached = [(x, row) for x, row in zip(places, rows, strict=True) if "ours" in row]
    if not attached:
        return
    ratios = [row["ratio_stock"][part] for _, row in attached]
    panel.plot([x for x, _ in attached], ratios, color=colour, label=f"{cell}, layer as attached")
    for ratio, (x, row) in zip(ratios, attached, strict=True):
        face, label = (colour, None) if row["scanned"] else ("white", f"{cell}, left to PyTorch")
        panel.plot(x, ratio, marker, ms=8, color=colour, markerfacecolor=face, mew=1.4, ls="",
                   label=label)  # fmt: skip


def _bars(rows: Sequence[Row]) -> Any:
    """Of each size a group of bars, one for each cell, with what it is worth at its end."""
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    size: Callable[[Row], Size] = lambda r: (r["H"], r["I"], r["B"], r["T"])  # noqa: E731
    sizes = sorted({size(row) for row in rows}, reverse=True)
    height = 0.8 / len(cells)
    figure, axis = recording.pyplot().subplots(
        figsize=(9, 1.4 + 0.2 * len(sizes) * len(cells)), layout="constrained"
    )
    for place, cell in enumerate(cells):
        colour, _ = style.CELLS[cell]
        for row in (r for r in rows if r["cell"] == cell):
            y = sizes.index(size(row)) + height * ((len(cells) - 1) / 2 - place)
            ratio, scanned = row["ratio_stock"]["both"], row["scanned"]
            face = colour if scanned else style.PALE
            axis.barh(y, ratio - 1, height * 0.9, left=1, color=face, edgecolor=colour)
            left = "" if scanned else ", left to PyTorch"
            axis.annotate(f"{style.times(ratio)}{left}", (max(ratio, 1), y), (4, 0), fontsize=8,
                          textcoords="offset points", va="center")  # fmt: skip
    axis.set_yticks(range(len(sizes)), [f"B {B}, T {T:,}, H {H}, I {I}" for H, I, B, T in sizes])
    axis.set_ylim(-0.6, len(sizes) - 0.4)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlim(right=axis.get_xlim()[1] * 2)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,g}×")
    axis.grid(axis="x", alpha=0.3)
    axis.set_xlabel("speed-up: stock PyTorch's time / ours (forward + backward, log scale)")
    bars = recording.pyplot().Rectangle
    figure.legend([bars((0, 0), 1, 1, color=style.CELLS[cell][0]) for cell in cells], cells,
                  loc="outside lower center", ncols=len(cells))  # fmt: skip
    return figure


if __name__ == "__main__":
    main()
