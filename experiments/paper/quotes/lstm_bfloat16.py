"""LSTMs under autocast to bfloat16, where the processor multiplies it."""

from statistics import median
from typing import Any

from experiments.paper.quotes.wording import source
from experiments.recording import read

NAME = "lstm_bfloat16"


def chosen(records: str) -> str:
    """How many sizes are left to PyTorch, and what is gained and lost beside it."""
    record = read(NAME)
    rows = record["rows"]
    return (
        f"We timed {len(rows)} sizes, with one thread and with two. "
        f"{_of('training', rows, 'a training step')} {_of('inference', rows, 'inference')} "
        f"{source(records, NAME, record)}"
    )


def _of(mode: str, rows: list[dict[str, Any]], words: str) -> str:
    of_mode = [row for row in rows if row["mode"] == mode]
    ours = [row for row in of_mode if row["ours"]]
    gains = [row["stock"]["step"] / row["auto"]["step"] for row in ours]
    all_ours = min(row["stock"]["step"] / row["linear"]["step"] for row in of_mode)
    return (
        f"Of {len(of_mode)} of {words}, {len(of_mode) - len(ours)} are left to PyTorch; the others "
        f"are {median(gains):.1f}x as fast as PyTorch in the median, {min(gains):.2f}x at worst "
        f"(where nothing is left to it, {all_ours:.2f}x at worst)."
    )


BLOCKS = {"lstm_bfloat16": chosen}
