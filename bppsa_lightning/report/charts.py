"""Charts as inline SVG: lines over steps, bars of parts. Colours are the page's, see style.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 26, 12, 40
COLOURS = 6


class Series(NamedTuple):
    """A line: values over steps; None where a value was not finite."""

    label: str
    steps: Sequence[float]
    values: Sequence[float | None]


def lines(title: str, series: Sequence[Series], unit: Callable[[float], str] | None = None) -> str:
    """A chart of one line or more over the training's steps.

    Args:
        title: for those who cannot see it.
        unit: words for a value of the vertical axis; four digits by default.
    """
    points = [
        (x, y) for s in series for x, y in zip(s.steps, s.values, strict=True) if y is not None
    ]
    if not points:
        return f'<p class="none">{escape(title)}: no finite values.</p>'
    x0, x1 = _span([x for x, _ in points])
    logarithmic = _is_logarithmic([y for _, y in points])
    scale = math.log10 if logarithmic else float
    y0, y1 = _span([scale(y) for _, y in points])

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for tick in _ticks(y0, y1):
        _, y = place(x0, tick)
        said = 10.0**tick if logarithmic else tick
        text = unit(said) if unit else f"{said:.4g}"
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        )
    for tick in _ticks(x0, x1, whole=True):
        x, _ = place(tick, y0)
        y = HEIGHT - BOTTOM + 17
        parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{_short(tick)}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">step</text>'
    )
    for k, s in enumerate(series):
        parts.append(_line(k, s, lambda x, y: place(x, scale(y))))
    svg = _svg(title, HEIGHT, parts)
    return svg + (_legend([s.label for s in series]) if len(series) > 1 else "")


def _line(k: int, s: Series, place: Callable[[float, float], tuple[float, float]]) -> str:
    """A path with gaps, and dots where a value stands alone."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(s.steps, s.values, strict=True):
        if y is None:
            runs.append([])
        else:
            runs[-1].append(place(x, y))
    path = "".join(
        "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run) for run in runs if len(run) > 1
    )
    few = len(s.steps) <= 30
    dots = [p for run in runs for p in run if few or len(run) == 1]
    circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in dots)
    line = f'<title>{escape(s.label)}</title><path class="line" d="{path}"/>{circles}'
    return f'<g class="c{k % COLOURS}">{line}</g>'


def stacked(
    title: str, rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[str],
    unit: Callable[[float], str],
) -> str:  # fmt: skip
    """Horizontal bars, each the sum of its parts: (name, a number for each of `parts`)."""
    longest = max((sum(values) for _, values in rows), default=0.0) or 1.0
    drawn, y = [], 16
    for name, values in rows:
        total, x = unit(sum(values)), 0.0
        drawn.append(f'<text class="strong" x="0" y="{y}">{escape(name)}</text>')
        drawn.append(f'<text x="{WIDTH}" y="{y}" text-anchor="end">{escape(total)}</text>')
        for k, (part, value) in enumerate(zip(parts, values, strict=True)):
            width = value / longest * WIDTH
            said = escape(f"{part}: {unit(value)}")
            drawn.append(
                f'<rect class="b{k % COLOURS}" x="{x:.2f}" y="{y + 6}" width="{width:.2f}" '
                f'height="22"><title>{said}</title></rect>'
            )
            x += width
        y += 54
    return _svg(title, y - 16, drawn) + (_legend(parts) if len(parts) > 1 else "")


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _legend(labels: Sequence[str]) -> str:
    items = "".join(
        f'<li><i class="k{k % COLOURS}"></i>{escape(label)}</li>' for k, label in enumerate(labels)
    )
    return f'<ul class="legend">{items}</ul>'


def _is_logarithmic(values: Sequence[float]) -> bool:
    """Whether small values would be lost beside large ones."""
    return min(values) > 0 and max(values) / min(values) >= 100


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        more = abs(low) * 0.05 or 0.5
        return low - more, high + more
    return low, high


def _ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Round numbers from low to high: three to six of them."""
    step = 10.0 ** math.floor(math.log10((high - low) / 5))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 6)
    step = max(step, 1.0) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    for limit, letter in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f"{value:.0f}"
