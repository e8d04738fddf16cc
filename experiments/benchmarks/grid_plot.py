"""The picture of a grid of sizes: a table of speed-ups for each cell and sequence length.

A row of panels for each cell, a panel for each T, in it a row for each batch size and a column for
each hidden size. Every number is stock PyTorch's time over ours; sizes that were left to PyTorch
are pale, without a number, and where stock is faster the number is red.
"""

from collections.abc import Sequence
from typing import Any

from experiments import recording, style
from experiments.benchmarks.recurrent_report import Row

SLOWER = "#c1121f"
Size = tuple[int, int]  # H, I


def draw(rows: Sequence[Row]) -> Any:
    """The figure of rows of which many share their cell and T.

    Raises:
        ValueError: two rows have one size.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Patch

    cells = list(dict.fromkeys(row["cell"] for row in rows))
    lengths, batches = (sorted({row[letter] for row in rows}) for letter in ("T", "B"))
    sizes: list[Size] = sorted({(row["H"], row["I"]) for row in rows})
    found = {(r["cell"], r["T"], r["B"], (r["H"], r["I"])): r for r in rows}
    if len(found) < len(rows):
        raise ValueError(f"rows: found {len(rows)} of {len(found)} sizes, wanted one of each")
    most = max([row["ratio_stock"]["both"] for row in rows if row["scanned"]], default=2.0)
    shades = ScalarMappable(LogNorm(1, max(most, 2.0)), style.SCANNED)
    width, height = 0.45 * len(sizes) * len(lengths), (0.5 + 0.3 * len(batches)) * len(cells)
    figure, axes = recording.pyplot().subplots(
        len(cells), len(lengths), sharex=True, sharey=True, squeeze=False, layout="constrained",
        figsize=(width + 1, height + 1.3),
    )  # fmt: skip
    for line, cell in zip(axes, cells, strict=True):
        for panel, T in zip(line, lengths, strict=True):
            mine = [[found.get((cell, T, B, size)) for size in sizes] for B in batches]
            _panel(panel, mine, shades)
            panel.set_title(f"{cell}, T = {T:,}")
            panel.set_yticks(range(len(batches)), [str(B) for B in batches])
            panel.set_xticks(range(len(sizes)), [_named(size) for size in sizes], fontsize=8)
        line[0].set_ylabel("batch size B")
    for panel in axes[-1]:
        panel.set_xlabel(
            "hidden size H (input as wide)" if _square(sizes) else "hidden size, input"
        )
    bar = figure.colorbar(shades, ax=axes, shrink=0.6, pad=0.01, aspect=40)
    bar.set_label("speed-up: stock PyTorch's time / ours (forward + backward)")
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if tick <= most]
    bar.set_ticks(ticks, labels=[f"{tick}×" for tick in ticks])
    bar.minorticks_off()
    figure.legend(
        handles=[Patch(color=style.PALE, label="left to PyTorch, which is faster there")],
        loc="outside lower center",
    )
    return figure


def _panel(panel: Any, rows: list[list[Row | None]], shades: Any) -> None:
    for y, line in enumerate(rows):
        for x, row in enumerate(line):
            if row is None:
                continue
            ratio, scanned = row["ratio_stock"]["both"], row["scanned"]
            colour = shades.to_rgba(max(ratio, 1.0)) if scanned else style.PALE
            panel.add_patch(_square_at(x, y, colour))
            if scanned:
                ink = SLOWER if ratio < 1 else "black" if _is_light(colour) else "white"
                text = style.times(ratio).removesuffix("×")
                panel.text(x, y, text, ha="center", va="center", fontsize=7.5, color=ink)
    panel.set(xlim=(-0.5, len(rows[0]) - 0.5), ylim=(-0.5, len(rows) - 0.5))
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)


def _is_light(colour: tuple[float, ...]) -> bool:
    red, green, blue = colour[:3]
    return 0.299 * red + 0.587 * green + 0.114 * blue > 0.48


def _square_at(x: int, y: int, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=1)


def _square(sizes: Sequence[Size]) -> bool:
    return all(H == I for H, I in sizes)


def _named(size: Size) -> str:
    H, I = size
    return str(H) if H == I else f"{H}, {I}"
