"""The sweeps on a GPU, beside cuDNN: layers as attached, and the operators alone."""

from typing import Any

from experiments.paper.section import Records, Section
from experiments.paper.sections.sweep import wins
from experiments.recording import markdown

NAME = "h200_layers"


def with_best_plan(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the record, with cuDNN's times over those of the best plan as "ratio"."""
    best, stock = row["plans"][row["best"]], row["stock"]
    return row | {"ratio": {part: stock[part] / best[part] for part in stock}}


def paper_sizes(records: Records) -> list[dict[str, Any]]:
    """The rows of the paper's cells and sizes."""
    rows = records[NAME]["rows"]
    return [with_best_plan(r) for r in rows if r["H"] == 20 and r["cell"] != "LSTM"]


def text(records: Records) -> str:
    rows = paper_sizes(records)
    header = (
        "cell", "B", "T", "cuDNN, backward", "operator", "", "as attached", "forward and backward"
    )  # fmt: skip
    slower = [
        {**row, "ratio_stock": {"step": row["ratio_stock"]["both"]}}
        for row in rows
        if row["ratio_stock"]["both"] < 1
    ]
    note = (
        "The operator is `bl.ops.rnn` or `bl.ops.gru` alone, with the fastest of the plans that "
        "were measured (in brackets; c8: chunks of 8); the last two columns are of the layer as "
        "attached. Up to some thousand steps its time is Python's."
    )
    return f"{markdown(header, map(_cells, rows))}\n\n{note} {wins(slower)}"


def _cells(row: dict[str, Any]) -> list[str]:
    ours, stock = (of["backward"] * 1e3 for of in (row["plans"][row["best"]], row["stock"]))
    ratios = [f"{row['ratio']['backward']:.1f}x"]
    ratios += [f"{row['ratio_stock'][part]:.1f}x" for part in ("backward", "both")]
    ours_cell = f"{ours:.2f} ms ({row['best']})"
    return [row["cell"], row["B"], f"{row['T']:,}", f"{stock:.2f} ms", ours_cell, *ratios]


def at_a_glance(records: Records) -> str:
    best, both = (
        max(row["ratio_stock"][part] for row in paper_sizes(records))
        for part in ("backward", "both")
    )
    return f"backward up to {best:.0f}x, forward and backward up to {both:.1f}x, over cuDNN"


SECTION = Section(
    name="gpu_sweep",
    title="RNN and GRU on a GPU, beside today's cuDNN",
    paper="The two sweeps above, as the paper measured them: up to 108x in the backward pass, "
    "on RTX 2070 and 2080 Ti beside cuDNN 7. Since then cuDNN has a kernel of its own for "
    "small states, which keeps the weights on the chip.",
    claim="backward up to 108x, over cuDNN 7",
    records=(NAME,),
    text=text,
    glance=at_a_glance,
    elsewhere="make gpu, on a machine with a GPU",
)
