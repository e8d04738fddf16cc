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
    """How many are left to PyTorch; beside the same by the rule for float32."""
    left = sum(not row["ours"] for row in rows)
    ours = [row["stock"]["step"] / row["linear"]["step"] for row in rows if row["ours"]]
    worst, lost = _judged(rows, "ours")
    worst_in_float32, lost_in_float32 = _judged(rows, "ours_in_float32")
    return (
        f"Of {len(rows)} sizes of {words}, in training and in inference, on one thread and on two, "
        f"{left} {'is' if left == 1 else 'are'} left to PyTorch. The others are "
        f"{median(ours):.1f}x as fast as PyTorch in the median, {worst:.2f}x at worst. A choice "
        f"takes {lost:.1%} longer than the better one in the mean. The rule for float32 would take "
        f"{lost_in_float32:.1%} longer, and be {worst_in_float32:.2f}x as fast as PyTorch at worst."
    )


def _judged(rows: list[dict[str, Any]], ours: str) -> tuple[float, float]:
    """The least of PyTorch's time over the chosen one's; the mean of what a choice takes longer
    than the better one, as a share."""
    least, longer = 1.0, 0.0
    for row in rows:
        stock, linear = row["stock"]["step"], row["linear"]["step"]
        chosen = linear if row[ours] else stock
        least = min(least, stock / chosen)
        longer += (chosen / min(stock, linear) - 1) / len(rows)
    return least, longer


BLOCKS = {"layers_bfloat16": chosen}
