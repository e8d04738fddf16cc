"""Recurrent operators on a GPU, beside cuDNN.

Letters: B batch, T steps, H hidden.
"""

from collections.abc import Sequence
from typing import Any

from experiments.paper.quotes.wording import ms, or_slower, source
from experiments.paper.sections.gpu_sweep import NAME, with_best_plan
from experiments.recording import markdown, read

# B, T, H: the paper's size, its longest sequence, its largest batch, and larger layers.
SIZES = (
    (16, 1000, 20), (16, 30000, 20), (256, 1000, 20), (16, 1000, 64), (16, 1000, 128),
    (16, 1000, 256),
)  # fmt: skip
HEADER = ("layer", "B", "T", "H", "cuDNN", "bppsa operator", "speed-up", "backward alone")


def table(records: str) -> str:
    """The sizes of SIZES for every cell; in bold where cuDNN is faster."""
    record = read(NAME)
    rows = [
        with_best_plan(row)
        for size in SIZES
        for row in record["rows"]
        if (row["B"], row["T"], row["H"]) == size
    ]
    note = (
        "The operators alone, before layers could be attached on CUDA, with the fastest plan "
        "measured. Bold: cuDNN is faster. Above 32 units `auto` leaves a layer to cuDNN."
    )
    return f"{markdown(HEADER, map(_cells, rows))}\n\n{note} {source(records, NAME, record)}"


def _cells(row: dict[str, Any]) -> Sequence[object]:
    sizes = (f"{row[letter]:,}" for letter in "BTH")
    ours = row["plans"][row["best"]]["both"]
    ratios = (or_slower(row["ratio"][part]) for part in ("both", "backward"))
    return (row["cell"], *sizes, ms(row["stock"]["both"]), ms(ours), *ratios)


BLOCKS = {"gpu_table": table}
