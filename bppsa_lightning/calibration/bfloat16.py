"""Times an LSTM under autocast to bfloat16, ours beside PyTorch's, on a CPU that multiplies it.

T steps, B batch, H input and hidden size.
"""

from collections.abc import Iterator, Mapping

from bppsa_lightning.calibration import pairs
from bppsa_lightning.calibration.fit_cpu import Size
from bppsa_lightning.calibration.progress import Progress
from bppsa_lightning.planner.bfloat16 import MODES

STEPS, BATCHES, SIZES = (1, 10, 100, 1000), (1, 4, 16, 64, 256), (8, 32, 64, 128, 256, 512)
# Multiply-adds of a gate: larger ones are taken to be as those of fewer steps.
MOST = 1 << 27

Key = tuple[str, int, int, int]  # mode, T, B, H


def measured(kept: Progress, seconds: float) -> Iterator[Mapping[Key, float]]:
    """PyTorch's time over ours, of every number of steps, for each B and H.

    Args:
        kept: what was measured so far.
        seconds: for each size.
    """
    for H in SIZES:
        for B in BATCHES:
            yield {
                (mode, *found): r for mode in MODES for found, r in _of(mode, B, H, kept, seconds)
            }


def _of(
    mode: str, B: int, H: int, kept: Progress, seconds: float
) -> Iterator[tuple[tuple[int, int, int], float]]:
    ratio = 1.0
    for T in STEPS:
        if STEPS[0] == T or T * B * H * H <= MOST:
            size = Size("LSTM", T, B, H)
            name = f"{' '.join(map(str, size))} bfloat16 {mode}"
            ours, stock = kept.measured(name, lambda: pairs.pair(size, seconds, bfloat16=mode))  # noqa: B023
            ratio = stock / ours
        yield (T, B, H), ratio
