"""On a CPU: from how many steps on a recurrent layer's call is faster here than in PyTorch.

Where a call is short, rearranging the weights takes longer than the steps do, or Python longer than
both; and a large W_hh is read again for each step of each group of samples. So each table gives the
least T that pays, for some H and B of each cell, as measured with some number of threads. Between
them it is interpolated, all on logarithmic scales; beyond them the last one counts.

T steps, B batch, H hidden.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import machine

# "Never" (null in a table) as a number of steps, so that it can be interpolated.
_NEVER = 2.0**20


class LeastSteps:
    """One cell's part of a table, for one number of threads.

    Args:
        sizes: H of each row, rising. batches: B of each column, rising.
        least: rows of the least T that pays; None where no T does.
    """

    def __init__(
        self, sizes: Sequence[int], batches: Sequence[int], least: Sequence[Sequence[int | None]]
    ) -> None:
        self._sizes, self._batches = list(map(math.log2, sizes)), list(map(math.log2, batches))
        self._least = [[math.log2(_NEVER if T is None else T) for T in row] for row in least]

    def at(self, B: int, H: int) -> float:
        """The least T that pays."""
        i, up = place(self._sizes, H)
        j, right = place(self._batches, B)
        here, above = self._least[i], self._least[min(i + 1, len(self._sizes) - 1)]
        k = min(j + 1, len(self._batches) - 1)
        low = here[j] + right * (here[k] - here[j])
        high = above[j] + right * (above[k] - above[j])
        # (Rounding must not hand over a call of exactly the size that was measured.)
        return 2.0 ** (low + up * (high - low) - 1e-9)


def place(logs: Sequence[float], size: int) -> tuple[int, float]:
    """The last entry that is not above `size`, and the share of the way to the next one."""
    log = math.log2(max(size, 1))
    i = min(max(bisect_right(logs, log) - 1, 0), len(logs) - 1)
    if i + 1 == len(logs) or log <= logs[i]:
        return i, 0.0
    return i, (log - logs[i]) / (logs[i + 1] - logs[i])


# By what `_least_steps` takes. A dict: asked in every call of a new size, and torch.compile, which
# may look into it where a model's graph breaks, does not take to lru_cache.
_known: dict[tuple[str, int, int, int, bool | None], float] = {}
machine.keeps_in(_known)


def pytorch_is_faster(cell: str, T: int, B: int, H: int, N: int | None = None) -> bool:
    """Whether PyTorch's kernel was measured to be the faster one.

    Samples of different lengths, with N steps in all, are spread over T * B steps here: their
    thresholds are apart, and others where more than half of these are padding.
    """
    asked = cell, B, H, torch.get_num_threads(), None if N is None else 2 * N < T * B
    try:
        return _known[asked] > T
    except KeyError:
        least = _known[asked] = _least_steps(*asked)
        return least > T


@torch.compiler.disable
def _least_steps(cell: str, B: int, H: int, threads: int, padded: bool | None) -> float:
    table = machine.cpu()
    if padded is None:
        measured = nearest_threads(table["hand_over"], threads)
    else:
        measured = table["packed"]["padded" if padded else "even"]
    # What was not measured of any cell is never handed over.
    least = measured["least_T"].get(
        CELLS[cell].kind, [[1] * len(measured["B"])] * len(measured["H"])
    )
    return LeastSteps(measured["H"], measured["B"], least).at(B, H)


def nearest_threads(measured: Sequence[Mapping[str, Any]], threads: int) -> Mapping[str, Any]:
    """Of what was measured with several numbers of threads, what is nearest to `threads`."""
    return min(measured, key=lambda part: abs(math.log2(part["threads"] / threads)))
