"""How a sequence was walked over ranks, for people."""

from __future__ import annotations

from bppsa_lightning.divided.divide import Way
from bppsa_lightning.divided.states import Report


def in_words(way: Way, report: Report, reason: str | None) -> str:
    """A call's way and what it met; `reason`: why ranks did not begin at once."""
    if way.forward == "meet":
        text = f"all ranks begin at once, warmed up for {way.warm} steps"
        if report.missed:
            text += f"; {report.missed} did not meet, and walked again"
    else:
        groups = f" in {way.groups} groups of samples" if way.groups > 1 else ""
        text = f"states are passed on{groups}" + (f", as {reason}" if reason else "")
    backward = {
        "relay": "gradients are passed on",
        "compose": "gradients by a scan of maps over ranks",
        "follow": "gradients are followed as far as they reach",
    }[way.backward]
    return f"{text}; {backward}"
