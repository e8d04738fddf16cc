"""What becomes of windows while networks learn."""

from typing import Any

from experiments.benchmarks import curves_report
from experiments.paper.quotes.wording import source
from experiments.recording import markdown, read

NAME, CURVES = "windows_trained", "windows_curves"
_TASKS = {
    "characters_rnn": "characters, RNN", "characters_gru": "characters, GRU",
    "characters_lstm": "characters, LSTM", "adding_gru": "adding problem, GRU",
    "adding_lstm": "adding problem, LSTM", "copy_gru": "copy task, GRU",
    "copy_lstm": "copy task, LSTM", "bitstream_rnn": "bit streams, RNN",
    "frames_gru": "frames of notes, GRU", "forecast_lstm": "forecast, LSTM",
}  # fmt: skip


def trained(records: str) -> str:
    """A line for each task and step: warm-up and gain for each length."""
    record = read(NAME)
    rows = []
    for name, task in record["tasks"].items():
        steps = dict.fromkeys(case["step"] for case in task["measured"])
        for step in steps:
            cases = [case for case in task["measured"] if case["step"] == step]
            cells = (f"{_windows(case)}, {case['gain']:.2f}x" for case in cases)
            auto = " / ".join(f"{case['auto_over_walk']:.2f}" for case in cases)
            rows.append((_TASKS.get(name, name), str(step), *cells, auto))
    cases = [case for task in record["tasks"].values() for case in task["measured"]]
    lengths = dict.fromkeys(case["T"] for case in cases)
    head = ("task", "after steps", *(f"{T:,} steps" for T in lengths), '"auto" / walk')
    error = max(case["error"]["windows"] / case["error"]["walk"] for case in cases)
    slowest = max(case["auto_over_walk"] for case in cases)
    text = (
        f'Errors of windows are at most {error:.1f} times the walk\'s; "auto" takes at most '
        f"{slowest:.2f} times the walk's time. {source(records, NAME, record)}"
    )
    return f"{markdown(head, rows)}\n\n{text}"


def _windows(case: dict[str, Any]) -> str:
    seen = case["happened"]
    if "windows" not in seen:
        return "walked"
    missed = f", {seen['missed']} missed" if seen["missed"] else ""
    return f"{seen['windows']} windows, warm-up {seen['warm']}{missed}"


def curves(records: str) -> str:
    """How far the losses of whole trainings part, over seeds."""
    record = read(CURVES)
    return f"{curves_report.table(record['rows'])}\n\n{source(records, CURVES, record)}"


BLOCKS = {"windows_trained": trained, "windows_curves": curves}
