"""Recurrent layers on the CPU, beside stock PyTorch and JAX.

Letters: B batch, T steps, H hidden, I input.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from experiments.paper.quotes.wording import ms, or_slower, source, speed_up
from experiments.paper.sections.grid import ratios
from experiments.recording import machine, markdown, read

TABLE, GRID, PACKED = "benchmark_recurrent_cpu", "grid_recurrent_cpu", "packed_recurrent_cpu"
BUSY = "recurrent_busy_cpu"
# B, T, H: the paper's size, a large layer, and two at which stock PyTorch or JAX is faster.
HEADLINES = ((16, 1000, 20, 1), (16, 1000, 128, 128), (16, 10, 20, 1), (16, 1, 20, 1))
LETTERS = ("B", "T", "H", "I")
HEADER = ("layer", *LETTERS, "stock PyTorch", "bppsa", "speed-up", "over JAX (jit)")


def headline_table(records: str) -> str:
    """The sizes of HEADLINES."""
    record = read(TABLE)
    rows = [
        row
        for size in HEADLINES
        for row in record["rows"]
        if tuple(row[letter] for letter in LETTERS) == size
    ]
    return f"{markdown(HEADER, map(_cells, rows))}\n\n{source(records, TABLE, record)}"


def every_size(records: str) -> str:
    """All sizes of the record."""
    record = read(TABLE)
    return f"{markdown(HEADER, map(_cells, record['rows']))}\n\n{source(records, TABLE, record)}"


def _cells(row: dict[str, Any]) -> Sequence[object]:
    sizes = (f"{row[letter]:,}" for letter in LETTERS)
    jax = or_slower(row["ratio_jax"]["both"])
    if row["scanned"]:
        ours, ratio = ms(row["ours"]["both"]), or_slower(row["ratio_stock"]["both"])
    else:
        ours, ratio = f"{ms(row['ours']['both'])}, by PyTorch", "1x (PyTorch is faster)"
    return (f"`nn.{row['cell']}`", *sizes, ms(row["stock"]["both"]), ours, ratio, jax)


def grid(records: str) -> str:
    """What the grid of all sizes shows."""
    record = read(GRID)
    what = f"[{len(record['rows'])} sizes]({records}/{GRID}.json)"
    return _sizes(what, record, ratios(record["rows"]))


def packed(records: str) -> str:
    """What the sizes with samples of different lengths show."""
    record = read(PACKED)
    what = (
        f"[{len(record['rows'])} sizes]({records}/{PACKED}.json) with samples of different lengths"
    )
    return _sizes(what, record, [row["ratio"] for row in record["rows"] if row["scanned"]])


def busy(records: str) -> str:
    """What two threads cost beside busy processes, in proportion to one."""
    record = read(BUSY)
    rows = [row for row in record["rows"] if row["busy"] and row["threads"] == 2]
    cells = {row["case"].split()[0] for row in rows}
    low, high = {}, {}
    for way in ("ours", "stock"):
        times = [row["mean_to_1"] for row in rows if row["way"] == way]
        low[way], high[way] = min(times), max(times)
    return (
        f"We timed forward and backward of {', '.join(sorted(cells))} layers with two threads, "
        f"beside {rows[0]['busy']} busy programs ([record]({records}/{BUSY}.json); "
        f"{machine(record['environment'])}). On average a step takes {low['ours']:.2f} to "
        f"{high['ours']:.2f} times as long as with one thread beside the same programs. For "
        f"PyTorch's own layers it is {low['stock']:.1f} to {high['stock']:.1f} times."
    )


def second_machine(records: str) -> str:
    """The table and the grid on another machine."""
    first, record = read(f"amd_epyc/{TABLE}"), read(f"amd_epyc/{GRID}")
    cells = ", ".join(
        f"{row['cell']} {speed_up(row['ratio_stock']['both'])}" for row in first["rows"][:3]
    )
    what = f"[the same {len(record['rows'])} sizes]({records}/amd_epyc/{GRID}.json)"
    return (
        f"{_sizes(what, record, ratios(record['rows']))} The paper's size gives "
        f"[{cells}]({records}/amd_epyc/{TABLE}.json)."
    )


def _sizes(what: str, record: dict[str, Any], found: list[float]) -> str:
    """Of all sizes measured, those kept by PyTorch; and the speed-ups found at the others."""
    total, slower = len(record["rows"]), [ratio for ratio in found if ratio < 1]
    sizes = "size" if len(slower) == 1 else "sizes"
    never = f"slower at {len(slower)} {sizes} ({speed_up(min(slower))} at worst)" if slower else ""
    e = record["environment"]
    return (
        f"We timed {what} ({e['cpu']}, {e['cores']} cores). PyTorch is faster for "
        f"{total - len(found)} of them, and keeps them. The other {len(found)} run on "
        f"our kernels: {speed_up(median(found))} as fast in the median, {never or 'never slower'}."
    )


def memory(records: str) -> str:
    """Peak extra memory of a training step."""
    record = read(TABLE)
    size = ", ".join(f"{letter} = {record['peak_memory'][0][letter]:,}" for letter in "BTH")
    rows = [
        [f"`nn.{row['cell']}`", *(f"{row[who] / 1e6:.0f} MB" for who in ("stock", "ours"))]
        for row in record["peak_memory"]
    ]
    table = markdown(("layer", "stock PyTorch", "bppsa"), rows)
    return f"{table}\n\nAt {size}. {source(records, TABLE, record)}"


def speed_up_of(cell: str) -> str:
    """The speed-up of a layer at the paper's size."""
    return next(
        speed_up(row["ratio_stock"]["both"])
        for row in read(TABLE)["rows"]
        if (row["cell"], *(row[letter] for letter in LETTERS)) == (cell, *HEADLINES[0])
    )


def calibration(records: str) -> str:
    """What a calibration is worth, on a machine that has a table of its own."""
    record, name = read("calibration_cpu"), "calibration_cpu"
    rows, e, took = record["rows"], record["environment"], record["calibration"]["seconds"]
    shipped, calibrated = record["shipped"], record["calibrated"]
    slower = len(calibrated["slower_than_stock"])
    means = [f"{100 * of['mean_regret']:.1f}%" for of in (shipped, calibrated)]
    return (
        f"We [calibrated]({records}/{name}.json) a machine that the package has a table for "
        f"({e['cpu']}, {e['cores']} cores; {took:.0f} s), and timed {len(rows)} sizes both ways. "
        f"With the shipped table {shipped['computed_here']} of them run on our kernels, with the "
        f"calibrated one {calibrated['computed_here']}. A choice takes {means[1]} longer than the "
        f"better one in the mean (shipped: {means[0]}), {100 * calibrated['worst_regret']:.0f}% at "
        f"worst (shipped: {100 * shipped['worst_regret']:.0f}%). {slower or 'None'} of the sizes "
        f"run{'s' * (slower == 1)} more than 3% slower than stock PyTorch."
    )


BLOCKS = {
    "cpu_table": headline_table,
    "cpu_sizes": every_size,
    "cpu_grid": grid,
    "cpu_packed": packed,
    "cpu_busy": busy,
    "cpu_calibration": calibration,
    "cpu_second_machine": second_machine,
    "cpu_memory": memory,
    "rnn_speed_up": lambda records: speed_up_of("RNN"),
    "gru_speed_up": lambda records: speed_up_of("GRU"),
    "lstm_speed_up": lambda records: speed_up_of("LSTM"),
}
