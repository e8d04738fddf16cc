"""Layers of which a table says whether they are PyTorch's: in bfloat16, and in inference."""

from statistics import median
from typing import Any

from experiments.paper.quotes.wording import source
from experiments.recording import read


def in_bfloat16(records: str) -> str:
    """How many sizes are left to PyTorch under autocast, and what is gained and lost beside it."""
    return _said(
        records, "layers_bfloat16", "in training and in inference, on one thread and on two",
        "ours_in_float32", "float32",
    )  # fmt: skip


def in_inference(records: str) -> str:
    """The same of forwards without gradients, in float32."""
    return _said(
        records, "inference_cpu", "on one thread and on two", "ours_in_training", "training"
    )


def _said(records: str, name: str, where: str, other: str, of_other: str) -> str:
    record = read(name)
    rows = record["rows"]
    said = [
        _of([row for row in rows if (row["cell"] == "LSTM") == lstm], words, where, other, of_other)
        for lstm, words in ((True, "LSTMs"), (False, "RNNs and GRUs"))
    ]
    return f"{' '.join(said)} {source(records, name, record)}"


def _of(rows: list[dict[str, Any]], words: str, where: str, other: str, of_other: str) -> str:
    """How many are left to PyTorch; beside the same by another rule."""
    left = sum(not row["ours"] for row in rows)
    ours = [row["stock"]["step"] / row["linear"]["step"] for row in rows if row["ours"]]
    worst, lost = _judged(rows, "ours")
    worst_of_other, lost_of_other = _judged(rows, other)
    return (
        f"Of {len(rows)} sizes of {words}, {where}, "
        f"{left} {'is' if left == 1 else 'are'} left to PyTorch. The others are "
        f"{median(ours):.1f}x as fast as PyTorch in the median, {worst:.2f}x at worst. A choice "
        f"takes {lost:.1%} longer than the better one in the mean. The rule for {of_other} would "
        f"take {lost_of_other:.1%} longer, and be {worst_of_other:.2f}x as fast as PyTorch at "
        "worst."
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


BLOCKS = {"layers_bfloat16": in_bfloat16, "inference": in_inference}
