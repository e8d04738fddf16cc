"""What bl.scan keeps for its backward, with and without checkpoints."""

from experiments.paper.quotes.wording import source
from experiments.recording import markdown, read

NAME = "scan_memory_cpu"

_WAYS = {
    "linear": "layer-norm LSTM, {H} hidden units, loop",
    "windows": "the same, windows",
    "cell": "`nn.LSTMCell` as it is, {H} hidden units",
}
_KEPT = {"all": "all is kept", "checkpoint": "`checkpoint=True`", "memory": "`memory={} << 20`"}


def peaks(records: str) -> str:
    """Peaks and times, a line for each way."""
    record = read(NAME)
    found = {(row["way"], row["kept"]): row for row in record["rows"]}
    lines = []
    for way, words in _WAYS.items():
        rows = [found[way, kept] for kept in _KEPT]
        cells = [f"{row['bytes'] / 2**20:.0f} MiB, {row['seconds']:.1f} s" for row in rows]
        lines.append((words.format(**rows[0]), *cells))
    about = (
        f"Forward and backward over {record['T']:,} steps of {record['B']} samples: what the "
        "process grows by at most, with inputs, outputs and gradients, and the processor's time, "
        "one thread."
    )
    head = ("", *(words.format(record["memory"] >> 20) for words in _KEPT.values()))
    return f"{about} {source(records, NAME, record)}\n\n{markdown(head, lines)}"


BLOCKS = {"scan_memory": peaks}
