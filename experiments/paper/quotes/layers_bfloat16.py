"""Layers under autocast to bfloat16, where the processor multiplies it."""

from statistics import median
from typing import Any

from experiments.paper.quotes.wording import source
from experiments.recording import read

NAME = "layers_bfloat16"


def chosen(records: str) -> str:
    """How many sizes are left to PyTorch, and what is gained and lost beside it."""
    record = read(NAME)
    rows = record["rows"]
    said = [
        _of([row for row in rows if (row["cell"] == "LSTM") == lstm], words)
        for lstm, words in ((True, "LSTMs"), (False, "RNNs and GRUs"))
    ]
    return f"{' '.join(said)} {source(records, NAME, record)}"


def _of(rows: list[dict[str, Any]], words: str) -> str:
    ours = [row for row in rows if row["ours"]]
    gains = [row["stock"]["step"] / row["auto"]["step"] for row in ours]
    all_ours = min(row["stock"]["step"] / row["linear"]["step"] for row in rows)
    left = len(rows) - len(ours)
    return (
        f"Of {len(rows)} sizes of {words}, in training and in inference, on one thread and on two, "
        f"{left} {'is' if left == 1 else 'are'} left to PyTorch. The others are "
        f"{median(gains):.1f}x as fast as PyTorch in the median, {min(gains):.2f}x at worst; if "
        f"nothing were left to it, the worst would be {all_ours:.2f}x."
    )


BLOCKS = {"layers_bfloat16": chosen}
