"""Layers where PyTorch's give up: other cells, and gradients of each sample."""

from experiments.paper.quotes.wording import ms, or_slower, source, speed_up
from experiments.recording import markdown, read

CELLS, OPACUS = "cells_cpu", "opacus_cpu"


def cells(records: str) -> str:
    """Layers of bl.nn beside their loops in Python, and beside bl.scan."""
    record = read(CELLS)
    most = max(row["threads"] for row in record["rows"])
    rows = [
        (
            f"`bl.nn.{row['cell']}`", ms(row["bl.nn"]["both"]),
            *(or_slower(row[f"ratio_{way}"]["both"]) for way in ("loop", "bl.scan")),
        )
        for row in record["rows"]
        if row["threads"] == most
    ]  # fmt: skip
    head = "module", "forward + backward", "its loop takes", "by `bl.scan`"
    sizes = f"{record['T']:,} steps, a batch of {record['B']}, {record['H']} units, {most} threads"
    return f"{markdown(head, rows)}\n\n{sizes}. {source(records, CELLS, record)}"


def opacus(records: str) -> str:
    """Beside Opacus' own layers: the range of each cell."""
    record = read(OPACUS)
    gains: dict[str, list[float]] = {}
    for row in record["rows"]:
        gains.setdefault(row["cell"], []).append(row["ratio_Opacus"]["both"])
    ranges = ", ".join(
        f"{cell} {speed_up(min(found))} to {speed_up(max(found))}" for cell, found in gains.items()
    )
    T, H = (sorted({row[name] for row in record["rows"]}) for name in "TH")
    sizes = (
        f"a batch of {record['rows'][0]['B']}, {' and '.join(map(str, T))} steps, "
        f"{' and '.join(map(str, H))} units"
    )
    return (
        "Forward, backward and gradients of each sample, beside the layers of Opacus "
        f"{record['opacus']}: {ranges} as fast ({sizes}). {source(records, OPACUS, record)}"
    )


BLOCKS = {"cells": cells, "opacus_layers": opacus}
