"""Ragged: what kernels are told of samples of different lengths, and how these lie side by side."""

from math import ceil

import numpy as np
import numpy.typing as npt

# Samples of a group at most: csrc/simd/parallel.h, SampleGroups.
_MOST_SAMPLES = 64


def side_by_side(samples: int, threads: int) -> tuple[npt.NDArray[np.int64], int]:
    """An order of samples by falling lengths in which all threads have as much to do.

    Args:
        samples: B of them. threads: that walk them.

    Returns:
        (B,), which sample is in each place: the groups of `Ragged` one after the other, in each of
        which lengths fall; and the number of groups.
    """
    blocks = ceil(samples / _MOST_SAMPLES)
    groups = ceil(blocks / threads) * threads
    groups = min(samples, groups)
    every = np.arange(samples)
    # (The larger groups come last, as the kernels divide them.)
    return np.lexsort((every, groups - 1 - every % groups)), groups
