"""Every size of a recurrent layer on the CPU."""

from statistics import median
from typing import Any

from experiments.compare.summary import times
from experiments.paper.section import Records, Section

NAME = "grid_recurrent_cpu"


def ratios(rows: list[dict[str, Any]]) -> list[float]:
    """Stock's time over ours, forward and backward, of the sizes that are scanned."""
    return [row["ratio_stock"]["both"] for row in rows if row["scanned"]]


def text(records: Records) -> str:
    rows = records[NAME]["rows"]
    slower = [row for row in rows if row["scanned"] and row["ratio_stock"]["both"] < 1]
    named = "; ".join(
        f"{row['cell']} at B = {row['B']}, T = {row['T']:,}, H = I = {row['H']} "
        f"({times(row['ratio_stock']['both'])})"
        for row in slower
    )
    scanned = len(ratios(rows))
    return (
        f"Of {len(rows)} sizes {len(rows) - scanned} are left to PyTorch, at the cost of "
        "handing over, a microsecond where the size is that of the call before; of the others "
        f"stock is faster at {f'{len(slower)}: **{named}**' if slower else 'none'}."
    )


def at_a_glance(records: Records) -> str:
    found = ratios(records[NAME]["rows"])
    slower = sum(ratio < 1 for ratio in found)
    return f"median {median(found):.1f}x; stock faster at {slower} of {len(found)} sizes scanned"


SECTION = Section(
    name="grid",
    title="Every size of a recurrent layer, and where stock PyTorch wins",
    paper="Not in the paper: RNN, GRU and LSTM alone, B = 1 … 256, T = 1 … 1000, "
    "H = I = 1 … 512, forward and backward from a gradient of every output.",
    records=(NAME,),
    pictures=(NAME,),
    text=text,
    glance=at_a_glance,
    elsewhere="make benchmark",
)
