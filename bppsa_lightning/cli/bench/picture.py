"""A bench as a picture: forward and backward of each layer and of the whole, and memory."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bppsa_lightning.cli.answer import Failed, WrongUsage
from bppsa_lightning.cli.bench.table import duration, size, times

if TYPE_CHECKING:
    from bppsa_lightning.cli.bench.found import Bench

SUFFIXES = (".png", ".svg", ".pdf")
# Of Okabe and Ito, told apart by colour-blind readers: (forward, backward).
STOCK, OURS = ("#F3C98B", "#D55E00"), ("#9CCBEA", "#0072B2")


def path(text: str) -> Path:
    """Where the picture goes; its folder is made.

    Raises:
        WrongUsage: the suffix is none of `SUFFIXES`, or matplotlib is missing.
        Failed: no file can be written there, which is better known before anything is measured.
    """
    found = Path(text)
    if found.suffix not in SUFFIXES:
        raise WrongUsage(
            f"--picture: found {text!r}, wanted a name that ends in .png, .svg or .pdf"
        )
    if find_spec("matplotlib") is None:
        raise WrongUsage("--picture: matplotlib is missing: pip install matplotlib")
    with _written(found) as beside:
        beside.touch()
        if found.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return found


def draw(bench: Bench, file: Path) -> None:
    """Writes it, whole or not at all; raises Failed if it cannot."""
    from matplotlib.figure import Figure

    rows = [(layer["name"], layer["compared"]) for layer in bench.layers]
    rows.append(("whole model", bench.whole))
    known = None not in bench.memory.values()
    figure = Figure(figsize=(9, 2.2 + 0.75 * len(rows)), layout="constrained")
    axes = figure.subplots(1, 2 if known else 1, squeeze=False, width_ratios=[3, 1][: 1 + known])[0]
    _times(axes[0], rows)
    if known:
        _memory(axes[1], bench)
    figure.suptitle(bench.title, fontsize=11, x=0.01, ha="left")
    figure.supxlabel(bench.hardware, fontsize=8, color="#444444", x=0.01, ha="left")
    with _written(file) as beside:
        figure.savefig(beside, dpi=150)
        os.replace(beside, file)


@contextlib.contextmanager
def _written(file: Path) -> Iterator[Path]:
    """A name beside the file, of which nothing is left afterwards; OSError becomes Failed."""
    beside = file.with_name(f"{file.stem}.{uuid.uuid4().hex}.tmp{file.suffix}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield beside
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise Failed(
            f"--picture: {file} cannot be written ({error.strerror or error}), wanted a file in a "
            "folder that can"
        ) from error


def _times(axes: Any, rows: list[tuple[str, Any]]) -> None:
    """Bars from the top down, PyTorch's above ours; the speed-up beside ours."""
    longest = max(compared.stock.both for _, compared in rows)
    longest = max(longest, *(compared.ours.both for _, compared in rows))
    unit, name = (1.0, "s") if longest >= 1 else (1e-3, "ms") if longest >= 1e-3 else (1e-6, "µs")
    for place, (_, compared) in enumerate(rows):
        for offset, seconds, colours, who in (
            (-0.2, compared.stock, STOCK, "PyTorch"),
            (0.2, compared.ours, OURS, "bppsa"),
        ):
            left = 0.0
            for part, colour in zip(("forward", "backward"), colours, strict=True):
                width = getattr(seconds, part) / unit
                label = f"{who}, {part}" if place == 0 else None
                axes.barh(place + offset, width, 0.36, left=left, color=colour, label=label)
                left += width
            said = duration(seconds.both)
            if who == "bppsa":
                said += f"   {times(compared.speed_up['both'])}"
            axes.annotate(
                said, (left, place + offset), (4, 0), textcoords="offset points", va="center",
                fontsize=9, fontweight="bold" if who == "bppsa" else "normal",
            )  # fmt: skip
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * longest / unit)
    axes.set_xlabel(f"one forward and backward ({name})")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _memory(axes: Any, bench: Bench) -> None:
    counts = [bench.memory["stock"] or 0, bench.memory["bppsa"] or 0]
    axes.bar([0, 1], [n / 2**20 for n in counts], 0.6, color=[STOCK[1], OURS[1]])
    for place, count in enumerate(counts):
        axes.annotate(
            size(count), (place, count / 2**20), (0, 3), textcoords="offset points", ha="center",
            fontsize=9,
        )  # fmt: skip
    axes.set_xticks([0, 1], ["PyTorch", "bppsa"])
    axes.set_ylim(0, 1.15 * max(1, *counts) / 2**20)
    axes.set_ylabel("peak memory (MiB)")
    axes.spines[["top", "right"]].set_visible(False)
