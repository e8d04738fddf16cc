"""Draws the scan of a chain: up-sweep, middle and down-sweep, with the cost of every product.

Of any attached model, after a step of training:

    (chain,) = bl.attach(model, "blelloch")
    loss(model(x)).backward()
    scan_picture.draw_chain(chain).savefig("scan.png")

Time or depth runs from left to right, the computation from top to bottom. A box spans the steps of
the chain that its matrix stands for, and is coloured by its floating-point operations for one
sample; from where a gradient becomes known, a line goes down to it. The bars sum each phase up, and
its part of the critical path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

import bppsa_lightning as bl
from experiments import recording
from experiments.train import scan_costs
from experiments.train.scan_costs import ScanCosts, Step

plt = recording.pyplot()
MOST_STEPS = 512
KINDS = {"matrix": ("Blues", "matrix × matrix"), "vector": ("YlOrBr", "matrix × vector")}
SHADES = (0.15, 0.8)  # of the colour maps: neither white nor black
CRITICAL = "#c1121f"
INK, QUIET, PALE = "#22262e", "#8a8f98", "#e9ebee"
# Inches: of the labels at the left, of the chain, of the bars and of all; height of a phase; width
# of a letter in a box.
LABELS, WIDTH, BARS, ALL = 1.15, 8.2, 1.15, 11.4
ROW = 0.56
LETTER = 0.066


def draw_chain(chain: bl.Chain) -> Figure:
    """The scan of an attached chain's last backward; of a stack with several runs, the longest.

    Raises:
        ValueError: the chain has not been scanned yet, or is too long to be drawn.
    """
    scans = scan_costs.of_chain(chain)
    return draw(max(scans, key=lambda scan: len(scan.names)), chain.name or chain.cell)


def draw(scan: ScanCosts, title: str) -> Figure:
    """A scan as a picture; see the module's text.

    Raises:
        ValueError: the chain has more than MOST_STEPS steps.
    """
    n = len(scan.names)
    if n > MOST_STEPS:
        raise ValueError(
            f"scan: found {n} steps, wanted at most {MOST_STEPS}; draw a shorter chain with the "
            "same plan (scan_costs.of_plan)"
        )
    phases = dict(scan.phases())
    rows = {phase: -1.0 - i for i, phase in enumerate(phases)}
    bottom = -1.0 - len(rows)
    height = ROW * (len(rows) + 2) + 1.25
    figure = plt.figure(figsize=(ALL, height))
    area = (0.5 / height, 1 - 1.3 / height)
    tree = figure.add_axes((LABELS / ALL, area[0], WIDTH / ALL, area[1]))
    left = (LABELS + WIDTH + 0.3) / ALL
    bars = figure.add_axes((left, area[0], BARS / ALL, area[1]), sharey=tree)
    shade = _shading(scan.steps)
    _draw_chain_row(tree, scan.names)
    _draw_gradients(tree, n, {**rows, "": bottom}, scan.steps)
    for phase, steps in phases.items():
        for step in steps:
            _draw_box(tree, step, rows[phase], n, shade(step))
    _draw_flow(tree, phases, rows)
    _draw_bars(bars, phases, rows, shade)
    tree.set(xlim=(-0.012 * n, 1.012 * n), ylim=(bottom - 0.5, 0.55), xticks=[])
    tree.set_yticks(
        [0.0, *rows.values(), bottom],
        ["transposed\nJacobians", *(_label(phase) for phase in rows), "gradients"],
        fontsize=9, color=INK,
    )  # fmt: skip
    tree.tick_params(length=0)
    tree.spines[:].set_visible(False)
    figure.text(0.15 / ALL, 1 - 0.3 / height, title, fontsize=13, weight="bold", color=INK)
    figure.text(0.15 / ALL, 1 - 0.57 / height, _summary(scan), fontsize=9.5, color=INK)
    _draw_legend(figure)
    return figure


def _draw_chain_row(axes: Axes, names: list[str]) -> None:
    """The chain itself, as given."""
    room = WIDTH / len(names)
    upright = max(map(len, names)) * LETTER * 0.92 + 0.02 > room
    for k, name in enumerate(names):
        axes.add_patch(_rectangle(k, k + 1, 0.0, PALE, QUIET, 0.6, len(names)))
        if room > 0.13:
            axes.text(k + 0.5, 0, name, ha="center", va="center", fontsize=7.5,
                      rotation=90 if upright else 0, color=INK)  # fmt: skip


def _draw_gradients(axes: Axes, n: int, rows: dict[str, float], steps: list[Step]) -> None:
    """Lines from where each gradient becomes known, and the gradients."""
    bottom = rows[""]
    known = {n: 0.45}
    for step in steps:
        if step.kind == "vector":
            # Products in a row pass through the states between, too.
            inner = range(step.first, step.last + 1) if step.count > 1 else [step.first]
            for state in inner:
                known.setdefault(state, rows[step.phase])
    axes.text(n, 0.5, "loss", ha="center", va="bottom", fontsize=9, color=INK)
    every = math.ceil((n + 1) / 26)
    for state, top in known.items():
        axes.plot([state, state], [top, bottom], color=QUIET, lw=0.7, ls=(0, (2, 2)), zorder=0)
        axes.plot(state, bottom, "o", ms=4 if every == 1 else 2, color=INK, zorder=3)
        if state % every == 0:
            axes.text(state, bottom - 0.16, f"$g_{{{state}}}$", ha="center", va="top", fontsize=9,
                      color=INK)  # fmt: skip


def _draw_box(axes: Axes, step: Step, y: float, n: int, colour: Any) -> None:
    left, right = step.first, step.last + 1
    edge, line = (CRITICAL, 1.8) if step.critical else (QUIET, 0.6)
    axes.add_patch(_rectangle(left, right, y, colour, edge, line, n, step.kind))
    cost = short(step.flops // step.count)
    texts = [f"{step.count} × {cost}", f"{step.count}×{cost}"] if step.count > 1 else [cost]
    width = (right - left) * WIDTH / n - 0.08
    fitting = [text for text in texts if len(text) * LETTER <= width]
    if fitting:
        axes.text((left + right) / 2, y, fitting[0], ha="center", va="center", fontsize=8,
                  color="white" if _dark(colour) else INK)  # fmt: skip


def _rectangle(
    left: float, right: float, y: float, colour: Any, edge: Any, line: float, n: int,
    kind: str = "matrix",
) -> FancyBboxPatch:  # fmt: skip
    """A box of one phase; those of matrix-vector products have round ends and are lower."""
    inches = WIDTH / n
    gap, half = min(0.03 / inches, 0.2), 0.3 if kind == "matrix" else 0.22
    round_ = {"matrix": 0.04, "vector": 0.1}[kind] / inches
    round_ = min(round_, (right - left - 2 * gap) / 2)
    return FancyBboxPatch(
        (left + gap, y - half), right - left - 2 * gap, 2 * half,
        boxstyle=f"round,pad=0,rounding_size={round_}", mutation_aspect=inches / ROW,
        facecolor=colour, edgecolor=edge, linewidth=line, zorder=2,
    )  # fmt: skip


def _draw_flow(axes: Axes, phases: dict[str, list[Step]], rows: dict[str, float]) -> None:
    """Arrows along the phases that go from step to step, right to left."""
    for phase, steps in phases.items():
        if phase in ("roots", "carry"):
            start = max(step.last for step in steps) + 1
            end = min(step.first for step in steps)
            axes.annotate(
                "", (end, rows[phase] - 0.36), (start, rows[phase] - 0.36),
                arrowprops={"arrowstyle": "->", "color": CRITICAL, "lw": 1.2},
            )  # fmt: skip


def _draw_bars(
    axes: Axes, phases: dict[str, list[Step]], rows: dict[str, float], shade: Callable
) -> None:
    """FLOPs of each phase, and of its part of the critical path."""
    longest = max(sum(step.flops for step in steps) for steps in phases.values())
    for phase, steps in phases.items():
        total, critical = (
            sum(step.flops for step in steps if step.critical or not only) for only in (0, 1)
        )
        y = rows[phase]
        axes.barh(y + 0.12, total, 0.22, color=shade(max(steps, key=lambda step: step.flops)))
        axes.barh(y - 0.12, critical, 0.22, color=CRITICAL)
        axes.text(total + 0.03 * longest, y + 0.12, short(total), fontsize=8, va="center")
        axes.text(critical + 0.03 * longest, y - 0.12, short(critical), fontsize=8, va="center",
                  color=CRITICAL)  # fmt: skip
    axes.set(xlim=(0, longest), xticks=[])
    axes.tick_params(length=0, labelleft=False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(QUIET)
    axes.text(0.03 * longest, 0.15, "FLOPs of the phase", fontsize=9, va="center", color=INK)
    axes.text(
        0.03 * longest, -0.15, "on the critical path", fontsize=9, va="center", color=CRITICAL
    )


def _draw_legend(figure: Figure) -> None:
    handles = [
        Patch(facecolor=plt.get_cmap(name)(0.5), edgecolor=QUIET, label=f"{label} (darker: more)")
        for name, label in KINDS.values()
    ]
    handles.append(Patch(facecolor="white", edgecolor=CRITICAL, lw=1.8, label="critical path"))
    where = (LABELS / ALL - 0.01, 0)
    figure.legend(handles=handles, loc="lower left", bbox_to_anchor=where, ncols=3, frameon=False,
                  fontsize=9)  # fmt: skip


def _shading(steps: list[Step]) -> Callable[[Step], Any]:
    """A step's colour: its kind's map, by FLOPs on a log scale common to both."""
    flops = [max(step.flops, 1) for step in steps]
    norm = LogNorm(min(flops), max(max(flops), min(flops) + 1))
    low, high = SHADES

    def shade(step: Step) -> Any:
        share = float(norm(max(step.flops, 1)))
        return plt.get_cmap(KINDS[step.kind][0])(low + (high - low) * share)

    return shade


def _dark(colour: tuple[float, ...]) -> bool:
    red, green, blue = colour[:3]
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.5


def _label(phase: str) -> str:
    kind, _, level = phase.partition(" ")
    if level:
        return f"{kind}\nlevel {level}"
    return {"roots": "middle\n(step by step)", "carry": "carry\n(step by step)"}.get(kind, kind)


def _summary(scan: ScanCosts) -> str:
    total = sum(step.flops for step in scan.steps)
    return (
        f"{scan.plan}: {scan.critical_products} products in a row, {short(scan.critical_flops)} "
        f"FLOPs ({short(total)} in all). Back-propagation: {len(scan.names)} in a row, "
        f"{short(scan.bp_flops)} FLOPs."
    )


def short(number: float) -> str:
    """A count in two or three digits: 800, 17k, 1.2M, 235M, 1.3G."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * factor:
            scaled = number / factor
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{number:.0f}"
