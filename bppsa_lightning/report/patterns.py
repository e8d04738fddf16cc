"""Pictures of masks: where a layer's surviving weights are."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

SHADES = 5


def picture(pattern: dict[str, Any]) -> str:
    """Of one layer: a cell is darker the more of its weights survive.

    Args:
        pattern: "layer", "type", "shape" of the weight, "weights" that survive, "density", and
            "cells", rows of densities from 0 to 1: outputs down, inputs across.
    """
    cells: Sequence[Sequence[float]] = pattern["cells"]
    rows, columns = len(cells), max(map(len, cells), default=0)
    densest = max((d for row in cells for d in row), default=0.0)
    paths: list[list[str]] = [[] for _ in range(SHADES)]
    for y, row in enumerate(cells):
        for x, density in enumerate(row):
            if density > 0:
                shade = min(int(density / densest * SHADES), SHADES - 1)
                paths[shade].append(f"M{x} {y}h1v1h-1z")
    drawn = "".join(
        f'<path class="d{k}" d="{"".join(path)}"/>' for k, path in enumerate(paths) if path
    )
    name = escape(pattern["layer"])
    shape = escape(" × ".join(str(n) for n in pattern["shape"]))
    return (
        f'<figure><svg class="mask" viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" '
        f'role="img" aria-label="surviving weights of {name}">{drawn}</svg>'
        f"<figcaption><b>{name}</b> ({escape(pattern['type'])} {shape})<br>"
        f"{pattern['weights']:,} weights, {pattern['density']:.2%}</figcaption></figure>"
    )
