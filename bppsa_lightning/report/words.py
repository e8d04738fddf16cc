"""Numbers and durations as people read them."""

from __future__ import annotations

import math


def seconds(value: float) -> str:
    """Of a step or of a run: "3.1 ms", "42 s", "1 h 5 min"."""
    if value < 0.9995e-3:  # which three digits show as 1 ms
        return f"{value * 1e6:.3g} µs"
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if value < 59.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(value: float) -> str:
    """Bytes: "1.2 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def count(value: float) -> str:
    """A whole number, with commas."""
    return f"{int(value):,}"


def number(value: float | None) -> str:
    """Four digits; what is no number as such."""
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4g}"


def factor(ratio: float) -> str:
    """A speed-up: "3.1x"."""
    return f"{ratio:.0f}x" if ratio >= 20 else f"{ratio:.1f}x" if ratio >= 1.05 else f"{ratio:.2f}x"
