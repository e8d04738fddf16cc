"""What the examples share: trainings in turns, stock PyTorch's beside ours; a table; a picture.

Nothing here is needed to use the library. An example's own file holds all that one would copy.
"""

import argparse
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl

import bppsa_lightning as bl
from experiments import recording, style
from experiments.train.pictures import COLOURS as PARTS  # of a step's parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {"stock": "PyTorch", "bppsa": "bppsa"}
STRATEGIES = {"stock": "auto", "bppsa": "bppsa"}
COLOURS = {"stock": style.STOCK, "bppsa": style.OURS}
SAME = 1e-4  # losses that differ by less, in proportion to the largest, are the same
# Trainer(**QUIET): an example prints its own table, and keeps nothing but its picture.
QUIET: dict[str, Any] = {
    "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One training: losses and seconds of all steps, median seconds of a step's parts and whole."""

    losses: list[float]
    steps: list[float]
    seconds: dict[str, float]
    model: Any = None


class Watch(pl.Callback):
    """A callback that keeps each step's loss; `timer` beside it times the steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.timer = bl.StepTimer(log=False)

    @property
    def callbacks(self) -> list[pl.Callback]:
        return [self, self.timer]

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        self.losses.append(float(outputs["loss"]))

    def run(self, model: Any) -> Run:
        """What was seen of the training of `model`."""
        return Run(self.losses, self.timer.step, self.timer.medians(), model)


def parser(text: str) -> argparse.ArgumentParser:
    """The command line of an example whose docstring is `text`."""
    parser = argparse.ArgumentParser(description=text.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller, in seconds: does it run?")
    recording.add_record_argument(parser)
    return parser


class Memory(pl.Callback):
    """The most bytes that this process had in training, beyond those before it (Linux)."""

    def on_train_start(self, *_: Any) -> None:
        self.before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forgets the most so far

    def on_train_end(self, *_: Any) -> None:
        self.bytes = _resident("VmHWM") - self.before


def _resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(what)]
    return int(line.split()[1]) * 1024


def in_turns(train: Callable[[str], Run], rounds: int) -> dict[str, list[Run]]:
    """Trains with stock PyTorch, with "bppsa", and again, so that both see the same machine.

    Args:
        train: given a strategy's name, trains from the same seed.
        rounds: trainings of each.
    """
    runs: dict[str, list[Run]] = {name: [] for name in STRATEGIES}
    for _ in range(rounds):
        for name, strategy in STRATEGIES.items():
            runs[name].append(train(strategy))
    return runs


def summary(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Seconds of each way, medians over its trainings; speed-ups, medians over the pairs; losses.

    Returns:
        {"stock": {"seconds": {part: s}, "losses": […], "elapsed": […]}, "bppsa": …,
        "speed_up": {part: ratio}, "losses_differ_by": the largest difference of a step's losses,
        in proportion to the largest loss}; losses of the first training, elapsed seconds of the
        last.
    """
    found: dict[str, Any] = {
        name: {
            "seconds": {part: median(r.seconds[part] for r in rs) for part in rs[0].seconds},
            "losses": rs[0].losses,
            "elapsed": list(accumulate(rs[-1].steps)),
        }
        for name, rs in runs.items()
    }
    pairs = list(zip(runs["stock"], runs["bppsa"], strict=True))
    found["speed_up"] = {
        part: median(a.seconds[part] / b.seconds[part] for a, b in pairs)
        for part in pairs[0][0].seconds
        if part != "data"
    }
    losses = [found[name]["losses"] for name in NAMES]
    gap = max(abs(a - b) for a, b in zip(*losses, strict=True))
    found["losses_differ_by"] = gap / max(map(abs, losses[0]))
    return found


def table(found: dict[str, Any], more: dict[str, tuple[str, str, str]] | None = None) -> str:
    """A summary as lines: milliseconds of a step's parts, the losses, and whatever `more` says."""
    rows = [("", NAMES["stock"], NAMES["bppsa"], "speed-up")]
    for part, ratio in found["speed_up"].items():
        ms = [f"{found[name]['seconds'][part] * 1e3:.2f} ms" for name in NAMES]
        rows.append((part, *ms, f"{ratio:.1f}x"))
    first, last = ([f"{found[n]['losses'][i]:.4f}" for n in NAMES] for i in (0, -1))
    rows += [("first loss", *first, ""), ("last loss", *last, "")]
    rows += [(name, *cells) for name, cells in (more or {}).items()]
    gap = f"The losses differ by at most {found['losses_differ_by']:.0e} of the largest"
    losses = [found[name]["losses"] for name in NAMES]
    alike, steps = together(*losses), len(losses[0])
    # Not by the strategy: any other order of sums is amplified so.
    gap += (
        "." if alike == steps else f"; the first {alike} of {steps} steps by less than {SAME:.0e}."
    )
    return "\n".join([f"{a:<16}{b:>12}{c:>12}{d:>10}".rstrip() for a, b, c, d in rows] + [gap])


def together(losses: list[float], others: list[float]) -> int:
    """Steps until two curves differ by SAME of the largest loss; all, if they do not."""
    far = SAME * max(map(abs, losses))
    apart = (i for i, (a, b) in enumerate(zip(losses, others, strict=True)) if abs(a - b) > far)
    return next(apart, len(losses))


def draw_step(axes: "Axes", found: dict[str, Any]) -> None:
    """The parts of a step of both ways, side by side."""
    for place, name in enumerate(NAMES):
        bottom = 0.0
        for part, colour in PARTS.items():
            ms = found[name]["seconds"][part] * 1e3
            label = None if place else part
            axes.bar(place, ms, 0.6, bottom, color=colour, label=label)
            bottom += ms
        step = found[name]["seconds"]["step"] * 1e3
        axes.text(place, bottom, f"{step:.1f} ms", ha="center", va="bottom")
    axes.set_xticks(range(len(NAMES)), list(NAMES.values()))
    axes.set(
        ylabel="milliseconds a step",
        title=f"{style.times(found['speed_up']['step'])} as fast a step",
    )
    axes.margins(y=0.1)
    axes.legend(loc="upper right")


def draw_bars(axes: "Axes", values: dict[str, float], colours: Iterable[str], form: str) -> None:
    """A bar for each name with its value above it, written as `form` says ("{:.1f} ms")."""
    for place, (value, colour) in enumerate(zip(values.values(), colours, strict=True)):
        axes.bar(place, value, 0.6, color=colour)
        axes.text(place, value, form.format(value), ha="center", va="bottom")
    axes.set_xticks(range(len(values)), list(values))
    axes.margins(y=0.1)


def draw_losses(axes: "Axes", found: dict[str, Any], smooth: int = 1) -> None:
    """The losses of both ways over the seconds of their steps.

    Args:
        smooth: steps over whose mean a point is drawn.
    """
    for name in NAMES:
        losses = found[name]["losses"]
        means = [
            sum(losses[i : i + smooth]) / smooth for i in range(0, len(losses) - smooth + 1, smooth)
        ]
        at = found[name]["elapsed"][smooth - 1 :: smooth]
        axes.plot(at, means, color=COLOURS[name], label=NAMES[name])
    axes.set(xlabel="seconds of training", ylabel="loss", title="The same losses, sooner")
    axes.legend()


@contextmanager
def picture(panels: int, title: str, record: dict[str, Any], path: Path) -> Iterator[Any]:
    """Panels in a row, to draw the record into; written to `path` at the end."""
    figure, axes = recording.pyplot().subplots(
        1, panels, figsize=(4.6 * panels, 3.9), layout="constrained"
    )
    figure.suptitle(title)
    yield axes
    recording.save_figure(figure, path, record["environment"])


def keep(
    name: str, results: dict[str, Any], draw: Callable[[dict[str, Any], Path], None],
    asked: argparse.Namespace,
) -> None:  # fmt: skip
    """Writes an example's record, and its picture by `draw`, and says where."""
    path = recording.folder(asked.record) / f"example_{name}.json"
    draw(recording.write(path, results), path.with_suffix(".png"))
    print(f"\npicture: {path.with_suffix('.png')}")


@contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's advice on trainings that are small on purpose."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
