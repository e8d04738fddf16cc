"""Where the time of a training step of the GRU goes."""

from typing import Any

from experiments.paper.section import Records, Section
from experiments.paper.sections.sweep import slower, wins
from experiments.recording import markdown

NAME = "gru_breakdown_cpu"
PARTS = ("forward", "backward", "rest")
HEADER = (
    "features", "T", "B", "ours: forward", "backward", "rest", "stock: forward", "backward",
    "rest", "whole step",
)  # fmt: skip
NOT_IN_TRAINER = (
    "A step alone, without Lightning, and with a loss on the last state, as in the paper. The "
    "training curves above were timed inside a Trainer, logging included, and read the mean of all "
    "states: at the same sizes their speed-ups are smaller."
)


def text(records: Records) -> str:
    rows = records[NAME]["rows"]
    return f"{markdown(HEADER, map(_cells, rows))}\n\n{wins(slower(rows))} {NOT_IN_TRAINER}"


def _cells(row: dict[str, Any]) -> list[str]:
    times = [f"{row[who][part] * 1e3:.2f} ms" for who in ("ours", "stock") for part in PARTS]
    ratio = f"{row['ratio_stock']['step']:.1f}x"
    return [row["features"], row["T"], row["B"], *times, ratio]


def at_a_glance(records: Records) -> str:
    ratios = [row["ratio_stock"]["step"] for row in records[NAME]["rows"]]
    return f"whole step {min(ratios):.1f}x to {max(ratios):.0f}x"


SECTION = Section(
    name="gru_breakdown",
    title="GRU on music: where the time goes in S, M and L",
    minutes=2,
    paper="Forward, backward and the rest of a training step, for B = 16, 32 and 64.",
    run="experiments.paper.gru_breakdown",
    quick="--seconds 1",
    records=(NAME,),
    pictures=(NAME,),
    text=text,
    glance=at_a_glance,
)
