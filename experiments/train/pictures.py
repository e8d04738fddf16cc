"""Pictures that an experiment logs at the end of its training; functions of its LightningModule."""

from typing import TYPE_CHECKING

import lightning.pytorch as pl

import bppsa_lightning as bl
from bppsa_lightning.chain import named_chains
from experiments import recording, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = style.PARTS | {"optimizer": style.GREEN}


def seconds_per_step(module: pl.LightningModule) -> "Figure":
    """The parts of every step of the training, one above the other, by the Trainer's StepTimer.

    Raises:
        ValueError: the Trainer has none, or no step was trained, as in a resumed training that
            had ended.
    """
    timers = [c for c in module.trainer.callbacks if isinstance(c, bl.StepTimer)]
    if not timers:
        raise ValueError("callbacks: found no bppsa_lightning.StepTimer, wanted one")
    if not timers[0].step:
        raise ValueError("module: found no step that was trained, wanted one")
    seconds = {part: getattr(timers[0], part) for part in COLOURS}
    figure, axes = recording.pyplot().subplots(figsize=(8, 4), layout="tight")
    steps = range(1, len(timers[0].step) + 1)
    milliseconds = [[1e3 * value for value in values] for values in seconds.values()]
    axes.stackplot(steps, milliseconds, labels=seconds, colors=COLOURS.values(), step="mid")
    # Single steps that the machine held up would hide all others.
    axes.set_ylim(0, 2.5e3 * timers[0].medians()["step"])
    axes.set(xlabel="step", ylabel="milliseconds", title="Where the time of a step goes")
    axes.legend(loc="upper right", ncols=4)
    return figure


def scan(module: pl.LightningModule) -> "Figure":
    """The scan of the model's first chain, with the cost of every product.

    Raises:
        ValueError: no chain is attached, as without strategy="bppsa".
    """
    from experiments.train import scan_picture  # late: matplotlib

    chains = named_chains(module)
    if not chains:
        raise ValueError("module: found no chain that is scanned, wanted one")
    return scan_picture.draw_chain(next(iter(chains.values())))
