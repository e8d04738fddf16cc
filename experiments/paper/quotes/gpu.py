"""Recurrent operators on a GPU, beside cuDNN.

Letters: B batch, T steps, H hidden.
"""

from collections.abc import Sequence
from typing import Any

from experiments.paper.quotes.wording import ms, or_slower, source, speed_up
from experiments.paper.sections.gpu_sweep import NAME, with_best_plan
from experiments.recording import markdown, read

# B, T, H: the paper's size, its longest sequence, its largest batch, and larger layers.
SIZES = (
    (16, 1000, 20), (16, 30000, 20), (256, 1000, 20), (16, 1000, 64), (16, 1000, 128),
    (16, 1000, 256),
)  # fmt: skip
PREDICTED, PREDICTED_SIZE = "h200_windows_predicted", (16, 30_000, 20)
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


def predicted(records: str) -> str:
    """What windows of time should take at PREDICTED_SIZE, with the best number of them."""
    record = read(PREDICTED)
    rows = [row for row in record["rows"] if (row["B"], row["T"], row["H"]) == PREDICTED_SIZE]
    head = ("layer", "cuDNN", "our kernels walk", "our kernels in windows", "cuDNN in windows")
    note = (
        "Predicted, not measured: forward and backward at (B, T, H) = (16, 30,000, 20), with the "
        "number of windows in brackets that should be fastest"
    )
    link = f"([record]({records}/{PREDICTED}.json))"
    return f"{markdown(head, map(_predictions, rows))}\n\n{note} {link}."


def _predictions(row: dict[str, Any]) -> Sequence[str]:
    cells = [row["cell"]]
    for who, in_windows in (("cuDNN", 0), ("auto", 0), ("linear", 1), ("cuDNN", 1)):
        ways = [w for w in row["ways"] if w["who"] == who and ("windows" in w) == in_windows]
        best = max(ways, key=lambda way: way["speed_up"])
        text = ms(best["both"])
        text += f", {speed_up(best['speed_up'])}" if who != "cuDNN" or in_windows else ""
        cells.append(text + (f" ({best['windows']})" if in_windows else ""))
    return cells


def _cells(row: dict[str, Any]) -> Sequence[object]:
    sizes = (f"{row[letter]:,}" for letter in "BTH")
    ours = row["plans"][row["best"]]["both"]
    ratios = (or_slower(row["ratio"][part]) for part in ("both", "backward"))
    return (row["cell"], *sizes, ms(row["stock"]["both"]), ms(ours), *ratios)


BLOCKS = {"gpu_table": table, "gpu_windows": predicted}
