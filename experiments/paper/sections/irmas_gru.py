"""The training curves of the GRU on music."""

from collections.abc import Callable
from typing import Any

from experiments.compare.summary import RUNS, forward_backward, times
from experiments.paper.section import Records, Section
from experiments.recording import markdown

HEADER = (
    "features", "T", "B", "excerpts an instrument", "validation", "test",
    "ours: forward + backward", "step", "stock: forward + backward", "step",
    "forward + backward", "step", "curves within 1e-4",
)  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """A line of Markdown for each size."""
    return markdown(HEADER, map(_cells, rows))


def _cells(row: dict[str, Any]) -> list[str]:
    ours, stock = (row[name]["seconds"] for name in RUNS)
    seconds = [s for part in (ours, stock) for s in (forward_backward(part), part["step"])]
    ratios = [forward_backward(stock) / forward_backward(ours), row["speed_up"]["step"]]
    return [
        row["features"],
        f"{row['T']:,}",
        row["B"],
        row["per_class"],
        f"{row['bppsa']['val_accuracy']:.0%}",
        f"{row['test_accuracy']:.0%}",
        *(f"{s * 1e3:.1f} ms" for s in seconds),
        *map(times, ratios),
        f"{row['steps_together']:,} of {compared(row):,} steps",
    ]


def compared(row: dict[str, Any]) -> int:
    """The steps over which the two curves are compared."""
    return row.get("stock_steps", row["steps"])


def text(name: str, how: str = "") -> Callable[[Records], str]:
    """The table of the record `name`, and a note; `how` it was trained."""
    return lambda records: _text(records[name]["rows"], how)


def _text(rows: list[dict[str, Any]], how: str) -> str:
    threads = sorted({row["threads"] for row in rows})
    note = (
        f"Threads: {', '.join(map(str, threads))}.{how} Seconds are medians of the training. "
        "Eleven instruments (chance: 9 %), rendered from a soundfont: accuracies say nothing of "
        "IRMAS. Validation and test are of recordings that training never saw; the network is the "
        "one trained by scan. What differs from the paper's training is in "
        "[irmas_gru.py](../train/irmas_gru.py). Once the learning rate has risen, training is "
        "chaotic: any difference of rounding, such as between two kernels, grows until two runs "
        "part."
    )
    if any("stock_steps" in row for row in rows):
        note += " Stock PyTorch was stopped early; the curves are compared up to there."
    return f"{table(rows)}\n\n{note}"


def at_a_glance(name: str) -> Callable[[Records], str]:
    """How long curves coincide, speed-ups and accuracies of the record `name`."""

    def glance(records: Records) -> str:
        rows = records[name]["rows"]
        fewest = min(row["steps_together"] for row in rows)
        ratios = [row["speed_up"]["step"] for row in rows]
        accuracies = "; ".join(
            f"{r['features']} {r['test_accuracy']:.0%}" for r in rows if r["B"] == 16
        )
        return (
            f"curves within 1e-4 for {fewest} steps; step {min(ratios):.1f}x to "
            f"{max(ratios):.1f}x; test accuracy: {accuracies}"
        )

    return glance


SECTION = Section(
    name="irmas_gru_whole",
    title="GRU on music: the training curves",
    minutes=75,
    paper="A GRU of 20 states names the instrument in three seconds of music (IRMAS), from "
    "MFCCs of 259 (S), 517 (M) and 1034 (L) frames, 16 excerpts a batch, for 400 epochs: its "
    "loss by back-propagation and by BPPSA. No accuracy on unseen excerpts.",
    run="experiments.paper.irmas_curves --name irmas_gru_whole",
    resumes=True,
    quick="--trainer.max_epochs 3 --data.per_class 15 --data.data_dir data/irmas_rendered_short",
    full="--batches 16 32 64",
    records=("irmas_gru_whole",),
    pictures=("irmas_gru_whole",),
    text=text("irmas_gru_whole", " Trained beside other work."),
    glance=at_a_glance("irmas_gru_whole"),
)
SHORT = Section(
    name="irmas_gru",
    title="GRU on music: two threads, and the beginning of stock's training",
    paper="The same figure. README and docs quote these times.",
    elsewhere="`python -m experiments.paper.irmas_curves --record --stock-steps 500`",
    records=("irmas_gru",),
    pictures=("irmas_gru",),
    text=text("irmas_gru"),
    glance=at_a_glance("irmas_gru"),
)
