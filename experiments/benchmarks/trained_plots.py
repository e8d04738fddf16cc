"""The picture of `windows_trained`: warm-up, windows that missed and speed-up over training."""

from pathlib import Path
from typing import Any

from experiments import recording, style

# A colour for each kind of task, a line for each cell.
COLOURS = {
    "characters": style.BLUE, "adding": style.VERMILLION, "copy": style.PURPLE,
    "bitstream": style.GREEN, "frames": style.ORANGE, "forecast": style.BLACK,
}  # fmt: skip
LINES = {"rnn": ":", "gru": "--", "lstm": "-"}


def draw(found: dict[str, Any], path: Path) -> None:
    """Four panels; nothing where no task was trained."""
    tasks = found["tasks"]
    if not tasks:
        return
    lengths = sorted({case["T"] for task in tasks.values() for case in task["measured"]})
    figure, axes = recording.pyplot().subplots(
        2, max(2, len(lengths)), figsize=(12, 9), sharex=True, squeeze=False, layout="constrained"
    )
    for name, task in tasks.items():
        _notes(axes[0], name, task["long"])
        for panel, T in zip(axes[1], lengths, strict=False):
            cases = [case for case in task["measured"] if case["T"] == T]
            steps, gains = [c["step"] for c in cases], [c["gain"] for c in cases]
            panel.plot(steps, gains, marker="o", markersize=4, **_style(name))
            panel.set_title(f"{T:,} steps: time of the walk / of windows")
    axes[0, 0].set(title="one long sequence: warm-up (gap: walked)", ylabel="steps of warm-up")
    axes[0, 1].set(title="windows that did not meet at first", ylabel="share of windows, %")
    axes[0, 1].set_ylim(0, max(10, axes[0, 1].get_ylim()[1]))
    for panel in axes[1]:
        panel.axhline(1, color="grey", linewidth=0.8)
        panel.set(xlabel="training steps", ylabel="speed-up")
    for panel in axes.flat:
        panel.grid(alpha=0.3)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    recording.save_figure(figure, path, found["environment"])


def _notes(panels: Any, name: str, notes: list[dict[str, Any]]) -> None:
    steps, nan = [note["step"] for note in notes], float("nan")
    warm = [note.get("warm", nan) for note in notes]
    missed = [100 * n["missed"] / n["windows"] if "windows" in n else nan for n in notes]
    walked = sum("walked" in note for note in notes)
    words = (
        name.replace("_", ", ").replace("rnn", "RNN").replace("gru", "GRU").replace("lstm", "LSTM")
    )
    label = f"{words} (walked: {walked} of {len(notes)})" if walked else words
    panels[0].plot(steps, warm, marker=".", label=label, **_style(name))
    panels[1].plot(steps, missed, marker=".", **_style(name))


def _style(name: str) -> dict[str, Any]:
    kind, cell = name.split("_")
    return {"color": COLOURS[kind], "linestyle": LINES[cell], "linewidth": 1.2}
