"""The picture of Newton's method: iterations and time over the gain, a column for each cell."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments import recording, style

# From the smallest hidden size to the largest.
COLOURS = (style.ORANGE, style.GREEN, style.BLUE, style.PURPLE)
# Where both did not converge, the circle is drawn inside the square.
LINES = {"diagonal": ("--", "s", 8), "newton": ("-", "o", 5)}
TIMES = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def draw(record: dict[str, Any], path: Path) -> None:
    """Writes the picture of a record's rows, of those of the length that most have."""
    rows = record["rows"]
    lengths = [row["T"] for row in rows]
    rows = [row for row in rows if row["T"] == max(lengths, key=lengths.count)]
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    figure, axes = recording.pyplot().subplots(
        2, len(cells), figsize=(4.4 * len(cells), 7.6), sharex=True, sharey="row", squeeze=False
    )
    for (upper, lower), cell in zip(axes.T, cells, strict=True):
        mine = [row for row in rows if row["cell"] == cell]
        _iterations(upper, mine)
        _times(lower, mine)
        upper.set_title(cell)
        lower.set_xlabel("gain (factor of the recurrent weights)")
    axes[0, 0].set_ylabel("iterations until no state changes by 1e-6")
    axes[1, 0].set_ylabel("time of forward + backward / the walk's")
    figure.suptitle(f"Newton's method over {rows[0]['T']:,} time steps, one sample, float32")
    _legend(figure, sorted({row["H"] for row in rows}))
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    recording.save_figure(figure, path, record["environment"])


def _each(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Of each way and hidden size: way, colour, and the rows by gain."""
    for way in LINES:
        for colour, H in zip(COLOURS, sorted({row["H"] for row in rows}), strict=False):
            yield way, colour, sorted((r for r in rows if r["H"] == H), key=lambda r: r["gain"])


def _iterations(panel: Any, rows: list[dict[str, Any]]) -> None:
    for way, colour, mine in _each(rows):
        line, mark, size = LINES[way]
        gains, counts = [r["gain"] for r in mine], [r[way]["iterations"] for r in mine]
        panel.plot(gains, counts, line, color=colour)
        for r in mine:
            face = colour if r[way]["converged"] else "white"
            point = (r["gain"], r[way]["iterations"])
            panel.plot(*point, mark, color=colour, markerfacecolor=face, markersize=size)
    panel.set_yscale("log")
    panel.set_yticks((3, 5, 10, 20, 50, 100), ("3", "5", "10", "20", "50", "100"))
    panel.minorticks_off()
    panel.grid(alpha=0.3)


def _times(panel: Any, rows: list[dict[str, Any]]) -> None:
    for way, colour, mine in _each(rows):
        line, mark, size = LINES[way]
        timed = [(r["gain"], r[way]["to_walk"]) for r in mine if "to_walk" in r[way]]
        if timed:
            panel.plot(*zip(*timed, strict=True), line + mark, color=colour, markersize=size - 1)
    gains = sorted({r["gain"] for r in rows})
    of_windows = [[r["windows"]["to_walk"] for r in rows if r["gain"] == g] for g in gains]
    low, high = map(min, of_windows), map(max, of_windows)
    panel.fill_between(gains, list(low), list(high), color="0.75", alpha=0.7, linewidth=0)
    panel.axhline(1, color="black", linewidth=1)
    panel.set_yscale("log")
    panel.set_yticks(TIMES, [f"{n:g}x" for n in TIMES])
    panel.minorticks_off()
    panel.grid(alpha=0.3)


def _legend(figure: Any, sizes: list[int]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    grey = {"color": "0.3", "markersize": 6}
    handles = [
        *(Line2D([], [], color=c, label=f"H = {H}") for c, H in zip(COLOURS, sizes, strict=False)),
        Line2D([], [], linestyle="-", marker="o", label="full Jacobians", **grey),
        Line2D([], [], linestyle="--", marker="s", label="diagonals", **grey),
        Line2D([], [], linestyle="", marker="o", markerfacecolor="white",
               label="did not converge", **grey),
        Patch(color="0.75", label="windows, all H"),
        Line2D([], [], color="black", linewidth=1, label="the walk"),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="lower center", ncols=5, frameon=False)
