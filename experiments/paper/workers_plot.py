"""The picture of workers.py: time over workers, and over steps with as many workers.

Solid: a whole training step. Dashed: its backward alone. Hollow and large: measured.
"""

from pathlib import Path
from typing import Any

from experiments import recording, style

# Of each algorithm: colour, marker, width of its line, the first of every two points with a mark.
STYLES = {
    "linear": (style.BLACK, "D", 1.6, 0),
    "chunked": (style.ORANGE, "s", 3.6, 0),
    "blelloch": (style.BLUE, "o", 1.6, 1),
    "speculative": (style.VERMILLION, "^", 1.6, 0),
}
SCANS = ("chunked", "blelloch")
Rows = list[dict[str, Any]]


def draw(found: dict[str, Any], path: Path) -> None:
    """A row for each cost of a composition; a column for each size, and one for p = n."""
    composes, sizes = found["composes"], found["sizes"]
    widths = [1.0] * (len(sizes) - 1) + [1.45, 1.2]  # the points of one thread and of two, apart
    figure, axes = recording.pyplot().subplots(
        len(composes), len(widths), figsize=(4 * sum(widths), 4 * len(composes)), sharey=True,
        sharex="col", width_ratios=widths, layout="constrained", squeeze=False,
    )  # fmt: skip
    for axis in axes.flat:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else "")
        axis.grid(alpha=0.3)
    for line, compose in zip(axes, composes, strict=True):
        rows = [row for row in found["rows"] if row["compose"] == compose]
        for axis, n in zip(line, sizes, strict=False):
            draw_lines(axis, [row for row in rows if row["n"] == n], "workers")
        draw_measured(line[-2], found["measured"])
        draw_equal(line[-1], [row for row in rows if row["workers"] == row["n"]])
        cost = "1 step, as the paper counts" if compose == 1 else f"{compose} steps (H³ over H²)"
        line[0].set_ylabel(f"a composition = {cost}\n\ntime (steps)")
    for axis, n in zip(axes[0], sizes, strict=False):
        axis.set_title(f"n = {n:,} steps", fontsize=11)
    axes[0, -2].set_title(f"n = {sizes[-1]:,} steps, and measured", fontsize=11)
    axes[0, -1].set_title("as many workers as steps", fontsize=11)
    for axis in axes[-1, :-1]:
        axis.set_xlabel("workers p")
    axes[-1, -1].set_xlabel("steps n = workers p")
    handles, labels = axes[0, -1].get_legend_handles_labels()
    figure.legend(
        [*handles, axes[0, 0].plot([], [], "o", ms=8, mfc="white", mec="0.4", mew=1.8)[0]],
        [*labels, "measured: 1 thread, 2 threads"],
        loc="outside lower center", ncols=4, frameon=False,
    )  # fmt: skip
    figure.suptitle(
        "A training step of a recurrence, forward and backward, simulated on p workers; "
        f"windows warm up for {found['warm']} steps"
    )
    recording.save_figure(figure, path, found["environment"])


def draw_lines(axis: Any, rows: Rows, what: str) -> None:
    """Whole steps, and the backwards of the scans, over workers or "n"."""
    for algorithm, (colour, marker, width, first) in STYLES.items():
        mine = series(rows, algorithm, what)
        x = [row[what] for row in mine]
        style = {"color": colour, "marker": marker, "ms": 5, "markevery": (first, 2)}
        axis.plot(x, [r["step"] for r in mine], lw=width, label=f"{algorithm}, whole step", **style)
        if algorithm in SCANS:
            axis.plot(x, [r["backward"] for r in mine], lw=1.4, ls="--", mfc="white",
                      label=f"{algorithm}, backward alone", **style)  # fmt: skip


def series(rows: Rows, algorithm: str, what: str) -> Rows:
    """An algorithm's rows in rising order."""
    return sorted((r for r in rows if r["algorithm"] == algorithm), key=lambda r: r[what])


def draw_equal(axis: Any, rows: Rows) -> None:
    """p = n: how each line grows stands at its end."""
    draw_lines(axis, rows, "n")
    scan = series(rows, "blelloch", "n")
    axis.plot([r["n"] for r in scan], [2 * r["backward"] for r in scan], ":", color=style.BLUE,
              lw=2, label="blelloch both ways (linear recurrence)")  # fmt: skip
    last = {name: series(rows, name, "n")[-1] for name in STYLES}
    for name, steps, text, up in (
        ("linear", last["linear"]["step"], "Θ(n)", 2),
        ("blelloch", last["blelloch"]["step"], "Θ(n)", -2),
        ("chunked", last["chunked"]["backward"], "Θ(√n)", 2),
        ("blelloch", 2 * last["blelloch"]["backward"], "Θ(log n)", 2),
        ("blelloch", last["blelloch"]["backward"], "Θ(log n)", 2),
        ("speculative", last["speculative"]["step"], "Θ(w)", -6),
    ):
        axis.annotate(text, (last[name]["n"], steps), xytext=(6, up), fontsize=9, va="center",
                      textcoords="offset points", color=STYLES[name][0])  # fmt: skip
    axis.set_xlim(right=last["linear"]["n"] * 3.9)


def draw_measured(axis: Any, rows: Rows) -> None:
    """Beside each other, so that none hides another."""
    for i, (algorithm, (colour, marker, _, _)) in enumerate(STYLES.items()):
        mine = series(rows, algorithm, "threads")
        axis.plot([row["threads"] * 2 ** (0.25 * (i - 1.5)) for row in mine],
                  [row["steps"] for row in mine], marker, ms=8, mfc="white", mec=colour, mew=1.8,
                  zorder=5)  # fmt: skip
    axis.set_xlim(left=0.55)
