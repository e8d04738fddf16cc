"""Times one step of a recurrent layer on the CPU, by its hidden size and number of samples.

T steps, B samples, H hidden; inputs of one number, as what they take does not depend on windows.
"""

from collections.abc import Iterator

from bppsa_lightning.calibration import pairs
from bppsa_lightning.calibration.fit_cpu import Size
from bppsa_lightning.calibration.progress import Progress

SIZES, SAMPLES = (8, 20, 64, 128, 256, 512), (1, 2, 4, 16, 64)
# A step is the difference of T steps and a quarter of them, of about so many multiply-adds.
_WORK, _LEAST, _MOST = 1 << 22, 64, 4096

Key = tuple[str, int, int]  # cell, H, samples


def measured(cell: str, kept: Progress, seconds: float, passes: int = 2) -> dict[Key, float]:
    """Seconds of a step, forward and backward, by whichever kernels are faster, at each size.

    Args:
        kept: what was measured so far.
        seconds: for each size.
        passes: over all sizes, of which the least counts: what disturbs often lasts for seconds.
    """
    least: dict[Size, float] = {}
    for again in range(passes):
        for size in _sizes(cell):
            name = f"{' '.join(map(str, size))} step {again}"
            taken = kept.measured(name, lambda: pairs.fastest(size, 1, seconds / 2 / passes))  # noqa: B023
            least[size] = min(taken, least.get(size, taken))
    found = {}
    for size, whole in least.items():
        T, quarter = size.T, size.T // 4
        part = least.get(size._replace(T=quarter))
        if part is not None:
            found[size.cell, size.H, size.B] = max(whole - part, whole / 8) / (T - quarter)
    return found


def _sizes(cell: str) -> Iterator[Size]:
    for H in SIZES:
        for B in SAMPLES:
            T = max(_LEAST, min(_MOST, _WORK // (B * H * H)))
            yield Size(cell, T, B, H)
            yield Size(cell, T // 4, B, H)
