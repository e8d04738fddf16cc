"""The table of windows_curves.py, for the terminal and for docs/."""

from statistics import median
from typing import Any

from experiments.recording import markdown


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each cell, over its seeds."""
    lines = []
    for cell in dict.fromkeys(found["cell"] for found in rows):
        own = [found for found in rows if found["cell"] == cell]
        walks, nearer, windows = [], [], []
        for found in own:
            between, *with_windows = found["apart"].values()
            walks.append(between)
            windows += with_windows
            nearer.append(min(with_windows) <= between)
        in_windows = median(found["steps_in_windows"] for found in own)
        lines.append((
            cell, len(own), f"{in_windows:,.0f} of {own[0]['steps']:,}", f"{median(walks):.1e}",
            f"{max(walks):.1e}", f"{median(windows):.1e}", f"{max(windows):.1e}",
            f"{sum(nearer)} of {len(own)}",
        ))  # fmt: skip
    head = (
        "cell", "seeds", "steps in windows", "two walks: median", "largest",
        "windows and a walk: median", "largest", "windows nearer than the other walk",
    )  # fmt: skip
    return markdown(head, lines)
