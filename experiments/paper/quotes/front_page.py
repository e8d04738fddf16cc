"""The README's one table: what is gained where, and where stock PyTorch is faster.

Letters: B batch, T steps, H hidden.
"""

from collections.abc import Iterator
from typing import Any

from experiments.paper.quotes.wording import ms, or_slower
from experiments.paper.sections.gpu_sweep import NAME as GPU
from experiments.recording import markdown, read

HEADER = ("what is timed", "size", "machine", "PyTorch", "bppsa", "speed-up", "runs on bppsa?")
# Cell, B, T, H, I of layers that are timed alone.
CPU_SIZES = (
    ("RNN", 16, 1000, 20, 1), ("GRU", 16, 1000, 20, 1), ("LSTM", 16, 1000, 20, 1),
    ("LSTM", 16, 1000, 128, 128), ("RNN", 16, 1, 20, 1),
)  # fmt: skip
GPU_SIZES = (
    ("RNN", 16, 1000, 20), ("LSTM", 16, 1000, 20), ("GRU", 16, 30_000, 20), ("GRU", 256, 1000, 128),
)  # fmt: skip


def table(_records: str) -> str:
    """One row for each of the above; in bold where stock PyTorch is the faster one."""
    rows = [*_trainings(), *_cpu_layers(), *_depth_and_pruning(), *_gpu_layers()]
    return markdown(HEADER, rows)


def _row(
    what: str, size: str, machine: str, stock: float, ours: float, ratio: float, runs: str
) -> tuple[str, ...]:
    return what, size, machine, ms(stock), ms(ours), or_slower(ratio), runs


def _trainings() -> Iterator[tuple[str, ...]]:
    record = read("bitstream_rnn")
    where = _maker(record)
    yield _row("training step, RNN", "B 16, T 1,000, H 20", where, *_step(record), "yes")
    record = read("irmas_gru")
    for row in record["rows"]:
        if row["features"] == "S":
            size = f"B {row['B']}, T {row['T']:,}, H 20"
            yield _row("training step, GRU on music", size, _maker(record), *_step(row), "yes")


def _maker(record: dict[str, Any]) -> str:
    """Of the CPU: "Intel(R) Xeon(R) Processor" -> "Intel"."""
    return str(record["environment"]["cpu"]).split()[0].partition("(")[0]


def _step(record: dict[str, Any]) -> tuple[float, float, float]:
    stock, ours = (record[who]["seconds"]["step"] for who in ("stock", "bppsa"))
    return stock, ours, record["speed_up"]["step"]


def _cpu_layers() -> Iterator[tuple[str, ...]]:
    record = read("benchmark_recurrent_cpu")
    rows = {tuple(row[letter] for letter in ("cell", "B", "T", "H", "I")): row
            for row in record["rows"]}  # fmt: skip
    for cell, B, T, H, I in CPU_SIZES:
        row = rows[cell, B, T, H, I]
        yield _row(
            f"`nn.{cell}`", f"B {B}, T {T:,}, H {H}", _maker(record), row["stock"]["both"],
            row["ours"]["both"], row["ratio_stock"]["both"], "yes" if row["scanned"] else "no",
        )  # fmt: skip


def _depth_and_pruning() -> Iterator[tuple[str, ...]]:
    record = read("lenet5")
    what = "training step, LeNet-5 scanned over depth"
    yield _row(what, "B 16", _maker(record), *_step(record), "only if asked")
    record = read("pruned_vgg11")
    stock, ours = (record[who]["seconds"]["pruned"]["step"] for who in ("stock", "bppsa"))
    what = "training step, VGG-11 with 3 % of its weights"
    where = _maker(record)
    yield _row(what, "B 32", where, stock, ours, record["speed_up"]["step"], "yes")
    record = read("benchmark_pruned_vgg11")
    where = _maker(record)
    for row in record["rows"]:
        if row["density"] == 0.5:
            stock, ours = (row["seconds"][who]["both"] for who in ("stock", "attached"))
            ratio = row["ratio"]["attached"]["both"]
            yield _row("VGG-11 with 50 % of its weights", "B 32", where, stock, ours, ratio, "no")


def _gpu_layers() -> Iterator[tuple[str, ...]]:
    rows = {tuple(row[letter] for letter in ("cell", "B", "T", "H")): row
            for row in read(GPU)["rows"]}  # fmt: skip
    for cell, B, T, H in GPU_SIZES:
        row = rows[cell, B, T, H]
        yield _row(
            f"`nn.{cell}`", f"B {B}, T {T:,}, H {H}", "H200", row["stock"]["both"],
            row["ours"]["both"], row["ratio_stock"]["both"], "yes" if row["scanned"] else "no",
        )  # fmt: skip


def rnn_step(_records: str) -> str:
    """The first number of the page."""
    stock, ours, _ = _step(read("bitstream_rnn"))
    return f"{ms(ours)} instead of {ms(stock)}"


BLOCKS = {"gains": table, "rnn_step": rnn_step}
