"""Whole trainings, by scan and by stock PyTorch."""

from typing import Any

from experiments.compare import summary
from experiments.compare.summary import RUNS, forward_backward
from experiments.paper.quotes.wording import ms, source, speed_up
from experiments.paper.sections import irmas_gru
from experiments.recording import markdown, read

HEADER = (
    "features", "T", "stock PyTorch", "bppsa", "speed-up", "whole step", "validation accuracy",
    "test accuracy",
)  # fmt: skip
MODELS_HEAD = ("model", "layers", "B", "T", "stock PyTorch", "bppsa", "speed-up")


def make_train(records: str) -> str:
    """What `make train` prints at its end."""
    record = read("bitstream_rnn")
    return f"```\n{summary.table(record)}\n```\n\n{source(records, 'bitstream_rnn', record)}"


def music(records: str) -> str:
    """The GRU on instruments, inside a Trainer."""
    record = read("irmas_gru")
    note = (
        "Forward and backward of a training step inside a Trainer; the loss reads the mean of all "
        "states."
    )
    table = markdown(HEADER, map(_cells, record["rows"]))
    return f"{table}\n\n{note} {source(records, 'irmas_gru', record)}"


def usual_models(records: str) -> str:
    """Steps of trainings that each have a process of their own."""
    record = read("trainings_cpu")
    rows = [
        (
            row["model"], row["layers"], row["B"], f"{row['T']:,}",
            *(ms(row[way]["seconds"]) for way in ("stock", "bppsa")), speed_up(row["ratio"]),
        )
        for row in record["rows"]
    ]  # fmt: skip
    apart = max(
        abs(row["stock"]["loss"] - row["bppsa"]["loss"]) / row["stock"]["loss"]
        for row in record["rows"]
    )
    threads = "One thread" if record["threads"] == 1 else f"{record['threads']} threads"
    steps = record["uncounted"] + record["steps"]
    note = (
        f"{threads}. After {steps} steps the two losses of a model are within "
        f"{apart:.0e} of each other."
    )
    return f"{markdown(MODELS_HEAD, rows)}\n\n{note} {source(records, 'trainings_cpu', record)}"


def _cells(row: dict[str, Any]) -> list[str]:
    ours, stock = (row[name]["seconds"] for name in RUNS)
    times = forward_backward(stock), forward_backward(ours)
    accuracies = row["bppsa"]["val_accuracy"], row["test_accuracy"]
    return [
        row["features"],
        f"{row['T']:,}",
        *map(ms, times),
        speed_up(times[0] / times[1]),
        speed_up(row["speed_up"]["step"]),
        *(f"{accuracy:.0%}" for accuracy in accuracies),
    ]


def curves_together(records: str) -> str:
    """For how many steps both losses of each size agree."""
    rows = read("irmas_gru")["rows"]
    fewest = min(rows, key=lambda row: row["steps_together"])
    return f"the first {fewest['steps_together']} of {irmas_gru.compared(fewest)} steps at least"


def gru_on_music(records: str) -> str:
    """Every number that is quoted for the GRU on features S, B = 16, and what it measures."""
    (trained,) = (r for r in read("irmas_gru")["rows"] if (r["features"], r["B"]) == ("S", 16))
    alone = read("gru_breakdown_cpu")["rows"][0]
    assert (alone["features"], alone["B"]) == ("S", 16)
    ours, stock = (forward_backward(trained[name]["seconds"]) for name in RUNS)
    last = "one step alone, loss on the last state (the paper's)"
    mean = "training with Lightning, loss on the mean of all states"
    steps = f"{irmas_gru.compared(trained):,} steps"
    rows = [
        (last, "forward + backward", alone["ratio_stock"]["both"], "gru_breakdown_cpu"),
        (last, "whole step", alone["ratio_stock"]["step"], "gru_breakdown_cpu"),
        (mean, "forward + backward", stock / ours, "irmas_gru"),
        (mean, "whole step", trained["speed_up"]["step"], "irmas_gru"),
        (mean, f"{steps}, wall-clock time", trained["speed_up"]["training"], "irmas_gru"),
    ]
    cells = [
        (what, part, speed_up(ratio), f"[{name}]({records}/{name}.json)")
        for what, part, ratio, name in rows
    ]
    return markdown(("measured", "of it", "speed-up", "record"), cells)


BLOCKS = {
    "train_table": make_train,
    "usual_models": usual_models,
    "irmas_table": music,
    "irmas_together": curves_together,
    "gru_numbers": gru_on_music,
}
