"""The picture of a recurrent benchmark's record: sweeps, or a bar for each row.

    python -m experiments.benchmarks.recurrent_plots experiments/records/nvidia_h100.json

prints the table of a record and draws its picture beside it, on any machine.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments import recording
from experiments.benchmarks.recurrent_cases import PARTS
from experiments.benchmarks.recurrent_report import Row, table

# Of the paper's sweeps, those that a row belongs to: the letter that varies, and the others' sizes.
SWEEPS: dict[str, dict[str, int]] = {
    "T": {"B": 16, "H": 20}, "B": {"T": 1000, "H": 20}, "H": {"B": 16, "T": 1000},
}  # fmt: skip


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


def draw(results: dict[str, Any], path: Path) -> None:
    """Sweeps where rows are enough for one; otherwise a bar a row. Without matplotlib: nothing."""
    try:
        recording.pyplot()
    except ImportError:
        print("no picture: matplotlib is not installed; recurrent_plots.py draws it elsewhere")
        return
    rows = results["rows"]
    swept = any(row.get("plans") for row in rows)
    figure = _sweeps(rows, results.get("training")) if swept else _bars(rows)
    recording.save_figure(figure, path)


def _sweeps(rows: Sequence[Row], training: dict[str, Any] | None) -> Any:
    """Stock's time over ours, by T, by B, by H: of the layer as attached, and of the best plan."""
    rows = [row for row in rows if "stock" in row]
    figure, axes = recording.pyplot().subplots(3, 3, figsize=(13, 10), layout="tight", sharey="row")
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    for column, (letter, others) in enumerate(SWEEPS.items()):
        for panels, part in zip(axes, PARTS, strict=True):
            panel = panels[column]
            for colour, cell in enumerate(cells):
                mine = sorted(
                    (r for r in rows if r["cell"] == cell and _belongs(r, others)),
                    key=lambda r: r[letter],
                )
                if mine:
                    _sweep(panel, mine, letter, part, cell, f"C{colour}")
            panel.axhline(1, color="black", linewidth=0.8)
            if panel.get_legend_handles_labels()[0]:
                panel.set(xscale="log", yscale="log")
                sizes = sorted({r[letter] for r in rows if _belongs(r, others)})
                panel.set_xticks(sizes, sizes, fontsize=8)
                panel.legend(fontsize=8)
            panel.set_xlabel(letter)
            panel.set_title(f"{'whole step' if part == 'both' else part}: stock's time / ours")
            panel.grid(alpha=0.3)
    for panels in axes:
        _ticks(panels)
    text = "filled: as attached; hollow: left to PyTorch; dashed: the best plan's operator alone"
    if training:
        text += f"\na training step through Trainer, RNN (16, 1000, 20): {training['ratio']:.2f}x"
    figure.suptitle(text, fontsize=10)
    return figure


def _ticks(panels: Sequence[Any]) -> None:
    """Of panels that share their ratios: at 1, 2, 5, 10 times, …."""
    low, high = panels[0].get_ylim()
    ratios = [m * 10.0**e for e in range(-2, 4) for m in (1, 2, 5)]
    for panel in panels:
        panel.set_yticks(ratios, [f"{ratio:g}x" for ratio in ratios], fontsize=8)
        panel.minorticks_off()
    panels[0].set_ylim(low, high)


def _belongs(row: Row, others: dict[str, int]) -> bool:
    return all(row[letter] == size for letter, size in others.items())


def _sweep(panel: Any, rows: list[Row], letter: str, part: str, cell: str, colour: str) -> None:
    sizes = [row[letter] for row in rows]
    best = [row["stock"][part] / row["plans"][row["best"]][part] for row in rows]
    panel.plot(sizes, best, ".--", color=colour, linewidth=1, label=f"{cell}, best plan")
    attached = [row for row in rows if "ours" in row]
    if not attached:
        return
    ratios = [row["ratio_stock"][part] for row in attached]
    panel.plot([row[letter] for row in attached], ratios, color=colour, label=cell)
    for ratio, row in zip(ratios, attached, strict=True):
        face = colour if row["scanned"] else "white"
        panel.plot(row[letter], ratio, "o", color=colour, markerfacecolor=face)


def _bars(rows: Sequence[Row]) -> Any:
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    figure, axes = recording.pyplot().subplots(
        1, len(cells), figsize=(6 * len(cells), 5), sharey=True, squeeze=False, layout="tight"
    )
    size: Callable[[Row], int] = lambda r: r["T"] * r["B"] * r["H"]  # noqa: E731
    for panel, cell in zip(axes[0], cells, strict=True):
        mine = sorted((r for r in rows if r["cell"] == cell), key=size)
        colours = ["tab:blue" if r["scanned"] else "lightgray" for r in mine]
        panel.bar(range(len(mine)), [r["ratio_stock"]["both"] for r in mine], color=colours)
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_yscale("log")
        panel.set_title(f"{cell}: stock PyTorch's time / ours (gray: left to PyTorch)")
        if len(mine) <= 40:
            labels = [f"{r['B']},{r['T']},{r['H']},{r['I']}" for r in mine]
            panel.set_xticks(range(len(mine)), labels, rotation=70, fontsize=8)
            panel.set_xlabel("B,T,H,I")
        else:
            panel.set_xlabel("sizes, by T·B·H")
    return figure


if __name__ == "__main__":
    main()
