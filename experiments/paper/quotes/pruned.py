"""Pruned VGG-11: a step at each density, and the retraining."""

from typing import Any

from experiments.compare import pruned
from experiments.paper.quotes.wording import ms, or_slower, source
from experiments.recording import markdown, read

STEP, TRAINING = "benchmark_pruned_vgg11", "pruned_vgg11"
HEADER = (
    "weights left", "stock PyTorch", "`bl.attach`", "speed-up", "`SparseJacobianPruning`",
    "speed-up", "with the optimizer's step",
)  # fmt: skip


def table(records: str) -> str:
    """Forward and backward at each density."""
    record = read(STEP)
    note = f"Forward and backward, {record['B']} images a batch."
    rows = markdown(HEADER, map(_cells, record["rows"]))
    return f"{rows}\n\n{note} {source(records, STEP, record)}"


def _cells(row: dict[str, Any]) -> list[str]:
    stock, attached, compact = (
        ms(row["seconds"][who]["both"]) for who in ("stock", "attached", "compact")
    )
    ratio = row["ratio"]
    return [
        f"{row['density']:.0%}",
        stock,
        attached,
        or_slower(ratio["attached"]["both"]),
        compact,
        or_slower(ratio["compact"]["both"]),
        or_slower(ratio["compact"]["step"]),
    ]


def training(records: str) -> str:
    """What comparing the two retrainings prints."""
    record = read(TRAINING)
    return f"```\n{pruned.table(record)}\n```\n\n{source(records, TRAINING, record)}"


BLOCKS = {"pruned_table": table, "pruned_training": training}
