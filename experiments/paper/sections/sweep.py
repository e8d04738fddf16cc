"""The sweeps of a training step over sequence length and batch, for the RNN and the GRU."""

from collections.abc import Callable
from typing import Any

from experiments.compare.summary import times
from experiments.paper.section import Records, Section
from experiments.recording import markdown

FADING = (
    "The loss reads the last state alone, as in the paper, and its gradient fades on its way: "
    "below 1.2e-38 stock PyTorch's backward slows down on Intel cores, up to fifteenfold, which is "
    "part of what is won at large T. [The table of all cells](benchmark_recurrent_cpu.json) has "
    "gradients of every output, which do not fade."
)


def slower(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sizes at which a whole training step of stock PyTorch is faster."""
    return [row for row in rows if row["ratio_stock"]["step"] < 1]


def wins(slower: list[dict[str, Any]]) -> str:
    """Where stock PyTorch is the faster one, in a sentence."""
    if not slower:
        return "Stock PyTorch is faster at none of these sizes."
    sizes = "; ".join(
        f"B = {row['B']}, T = {row['T']:,} ({times(row['ratio_stock']['step'])})" for row in slower
    )
    return f"**Stock PyTorch is faster at:** {sizes}."


def table(name: str) -> Callable[[Records], str]:
    """The sizes of the record `name`, those at B = 16 first."""

    def text(records: Records) -> str:
        rows = sorted(records[name]["rows"], key=lambda row: (row["B"] != 16, row["B"], row["T"]))
        header = ("B", "T", "ours", "stock PyTorch", "backward", "whole step")
        return f"{markdown(header, map(_cells, rows))}\n\n{wins(slower(rows))} {FADING}"

    return text


def _cells(row: dict[str, Any]) -> list[str]:
    ours, stock = (f"{row[who]['step'] * 1e3:.2f} ms" for who in ("ours", "stock"))
    left = " (left to PyTorch)" if row["left_to_pytorch"] else ""
    ratios = [f"{row['ratio_stock'][part]:.1f}x" for part in ("backward", "step")]
    return [str(row["B"]), f"{row['T']:,}", ours + left, stock, *ratios]


def at_a_glance(name: str) -> Callable[[Records], str]:
    """The least and the largest speed-up of the record `name`."""

    def glance(records: Records) -> str:
        found = []
        for part, label in (("backward", "backward"), ("step", "whole step")):
            ratios = [row["ratio_stock"][part] for row in records[name]["rows"]]
            found.append(f"{label} {min(ratios):.1f}x to {max(ratios):.0f}x")
        return ", ".join(found)

    return glance


RNN = Section(
    name="rnn_sweep",
    title="RNN: speed-up by sequence length and by batch",
    minutes=2,
    paper="The same RNN at T = 10 … 30,000 (B = 16) and B = 2 … 256 (T = 1000): the longer the "
    "sequence and the smaller the batch, the more is won; up to 108x in the backward pass, on "
    "RTX 2070 and 2080 Ti beside cuDNN 7.",
    claim="backward up to 108x",
    run="experiments.paper.sweep",
    quick="--seconds 0.5 --pairs 3 --longest 3000",
    records=("bitstream_sweep_rnn_cpu",),
    pictures=("bitstream_sweep_rnn_cpu",),
    text=table("bitstream_sweep_rnn_cpu"),
    glance=at_a_glance("bitstream_sweep_rnn_cpu"),
)
GRU = Section(
    name="gru_sweep",
    title="GRU: the same sweeps",
    minutes=3,
    paper="Not in the paper, which measures its GRU on music (below).",
    run="experiments.paper.sweep",
    quick="--cell GRU --seconds 0.5 --pairs 3 --longest 1000",
    full="--cell GRU",
    records=("bitstream_sweep_gru_cpu",),
    pictures=("bitstream_sweep_gru_cpu",),
    text=table("bitstream_sweep_gru_cpu"),
    glance=at_a_glance("bitstream_sweep_gru_cpu"),
)
