"""Recurrent layers on a GPU, beside cuDNN.

Letters: B batch, T steps, H hidden.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from experiments.benchmarks.gpu_day import bars_of_windows
from experiments.benchmarks.gpu_day.bars import Found
from experiments.paper.quotes.wording import ms, or_slower, source, speed_up
from experiments.recording import markdown, read

LAYERS, WINDOWS, TRAINING = "h200_layers", "h200_windows", "h200_training"
PRODUCTS = "h200_products"
# B, T, H: short sequences, the paper's size, its longest, its largest batch, and larger layers.
SIZES = (
    (16, 10, 20), (16, 1000, 20), (16, 30000, 20), (256, 1000, 20), (16, 1000, 64),
    (16, 1000, 128), (16, 1000, 256), (256, 1000, 128),
)  # fmt: skip
WINDOWED = (16, 30_000, 20)
HEADER = ("layer", "B", "T", "H", "cuDNN", "bppsa", "speed-up", "backward alone")


def table(records: str) -> str:
    """The sizes of SIZES for every cell; in bold where cuDNN is faster."""
    record = read(LAYERS)
    rows = [
        row for size in SIZES for row in record["rows"] if (row["B"], row["T"], row["H"]) == size
    ]
    note = (
        "One layer as attached, after a calibration, its loss on the last state. Bold: cuDNN is "
        "faster. (`auto` left these two to it; the benchmark's copy of the layer had its weights "
        "in pieces, which cuDNN gathers at every call.)"
    )
    return f"{markdown(HEADER, map(_cells, rows))}\n\n{note} {source(records, LAYERS, record)}"


def windows(records: str) -> str:
    """Windows of time at WINDOWED beside walks, the best number of them, and what was predicted."""
    record = read(WINDOWS)
    rows = [
        row
        for row in record["windows"]
        if (row["B"], row["T"], row["H"]) == WINDOWED and row["loss"] == "every"
    ]
    head = ("layer", "cuDNN", "our kernels walk", "our kernels in windows", "cuDNN in windows")
    note = (
        "Forward and backward at (B, T, H) = (16, 30,000, 20), with a gradient of every output; in "
        "brackets how many windows were fastest, and what was predicted."
    )
    return f"{markdown(head, map(_in_windows, rows))}\n\n{note} {source(records, WINDOWS, record)}"


def _in_windows(row: dict[str, Any]) -> Sequence[str]:
    ways = row["ways"]
    cells = [row["cell"], ms(ways["cuDNN"]["seconds"]["both"]), _one(ways["linear"])]
    for who in ("linear", "cuDNN"):
        cut = [way for name, way in ways.items() if name.startswith(f"{who}, windows")]
        best = max(cut, key=lambda way: way["speed_up"]["both"])
        guess = speed_up(max(way["predicted"]["speed_up"] for way in cut))
        cells.append(f"{_one(best)} ({best['windows']}; {guess} predicted)")
    return cells


def _one(way: dict[str, Any]) -> str:
    return f"{ms(way['seconds']['both'])}, {speed_up(way['speed_up']['both'])}"


def sizes(_records: str) -> str:
    """How many sizes were scanned, and what that gained."""
    found = [row["ratio_stock"]["both"] for row in read(LAYERS)["rows"] if row["scanned"]]
    return f"{len(found)} sizes: {min(found):.2f} to {max(found):.1f} times, {median(found):.1f}"


def exactness(_records: str) -> str:
    """How many windows were measured, and their largest error over that of the same walk."""
    found = bars_of_windows.exact(Found("", {WINDOWS: read(WINDOWS)}, {})).found
    count, _, rest = found.partition(", at most ")
    return f"{count} ways were measured; their error was at most {rest.split()[0]} times the walk's"


def products(_records: str) -> str:
    return f"{read(PRODUCTS)['ratio']['torch']:.1f}"


def graphs(records: str) -> str:
    """What a step replayed from a CUDA graph gains."""
    found = [speed_up(row["ratio_stock"]["both"]) for row in read(LAYERS)["graphs"]]
    return ", ".join(found[:-1]) + f" and {found[-1]}"


# Of the options that were measured: how they are called.
OPTIONS = {
    "dtype": "float64", "autocast": "autocast to float16", "num_layers": "two layers",
    "bidirectional": "both directions", "lengths": "samples of different lengths",
    "proj_size": "projected to 10",
}  # fmt: skip


def options(records: str) -> str:
    """How many times cuDNN's time, forward and backward, is that of a scanned layer."""
    record = read(LAYERS)
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in record["options"]:
        option = next(iter(row.get("settings", {})), None)
        if option is None or not (row["scanned"] or "scan" in row):
            continue
        size = ", ".join(f"{row[letter]:,}" for letter in "BTH")
        ours = row["ours"] if row["scanned"] else row["scan"]
        ratio = row["stock"]["both"] / ours["both"]
        found.setdefault((OPTIONS[option], f"({size})"), {})[row["cell"]] = speed_up(ratio)
    head = ("option", "(B, T, H)", "RNN", "GRU", "LSTM")
    rows = ((*names, *(cells.get(c, "") for c in head[2:])) for names, cells in found.items())
    return f"{markdown(head, rows)}\n\n{source(records, LAYERS, record)}"


def training(records: str) -> str:
    """Steps of whole trainings, by cell and length."""
    record = read(TRAINING)
    head = ("training step", "T", "stock", 'strategy="bppsa"', "speed-up")
    rows = (
        (row["cell"], f"{row['T']:,}", ms(row["stock"]), ms(row["ours"]), or_slower(row["ratio"]))
        for row in record["rows"]
    )
    return f"{markdown(head, rows)}\n\n{source(records, TRAINING, record)}"


def _cells(row: dict[str, Any]) -> Sequence[object]:
    sizes = (f"{row[letter]:,}" for letter in "BTH")
    ratios = (or_slower(row["ratio_stock"][part]) for part in ("both", "backward"))
    return (row["cell"], *sizes, ms(row["stock"]["both"]), ms(row["ours"]["both"]), *ratios)


BLOCKS = {
    "gpu_table": table, "gpu_windows": windows, "gpu_graphs": graphs, "gpu_options": options,
    "gpu_training": training, "gpu_sizes": sizes, "gpu_exact": exactness, "gpu_products": products,
}  # fmt: skip
