"""Sparse or dense: the choice for one pruned layer, by density and shape.

Both are estimated for a forward and a backward, a position being a pixel of one sample's output:

    sparse = 3 · surviving weights · positions / rate + surviving weights · entry
             + numbers in and out · memory + weights · memory (taken and put) + calls
    dense  = 3 · weights · positions / rate
             + numbers in and out · memory + weights · memory (the mask's product and more) + calls

The constants fit two cores in float32, most to a quarter and all to a factor of two, what is
uncertain in favour of dense; experiments/benchmark_sparse.py records both.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch


class PrunedRequest(NamedTuple):
    """A pruned layer and its input's size.

    Attributes:
        shape: of the weight, (O, C / groups, kernel rows, kernel columns).
        nnz: surviving weights.
        channels: of the input.
        B: samples. H, W: rows and columns of the image.
        output_size: rows and columns of the output.
    """

    shape: tuple[int, int, int, int]
    nnz: int
    channels: int
    B: int
    H: int
    W: int
    output_size: tuple[int, int]


@dataclass(frozen=True)
class PrunedPlan:
    """How a pruned layer is computed.

    Attributes:
        sparse: whether by surviving weights only.
        sparse_seconds, dense_seconds: estimated, of a forward and a backward.
        reason: one line for people.
    """

    sparse: bool
    sparse_seconds: float
    dense_seconds: float
    reason: str

    @property
    def seconds(self) -> float:
        """Of the choice."""
        return self.sparse_seconds if self.sparse else self.dense_seconds


_SPARSE_RATE, _DENSE_RATE = 30e9, 74e9  # multiply-adds a second of a core
_ENTRY = 6e-9  # seconds of a core for a surviving weight, beside its multiply-adds


# Seconds of a core for a number of the input, of the output and of the weight: for kernels of one
# tap, and for others: a padded copy is made here, weights are rearranged there.
_Memory = tuple[tuple[float, float, float], tuple[float, float, float]]
_SPARSE_MEMORY: _Memory = ((1.5e-9, 1.2e-9, 0.6e-9), (4e-9, 1.2e-9, 0.6e-9))
_DENSE_MEMORY: _Memory = ((0.8e-9, 0.8e-9, 1.6e-9), (0.8e-9, 0.8e-9, 3.5e-9))
_SPARSE_CALLS, _DENSE_CALLS = 190e-6, 80e-6  # seconds
# What is near is not worth the risk: the sparse layer must be estimated to be this much faster.
_MARGIN = 0.87


def choose(request: PrunedRequest) -> PrunedPlan:
    """The plan for a pruned layer and a size of its input."""
    return _choose(request, torch.get_num_threads())


@lru_cache(maxsize=4096)
def _choose(request: PrunedRequest, threads: int) -> PrunedPlan:
    nnz, weights = request.nnz, math.prod(request.shape)
    sparse = _seconds(request, nnz, _SPARSE_RATE, _SPARSE_MEMORY) + nnz * _ENTRY
    sparse = sparse / threads + _SPARSE_CALLS
    dense = _seconds(request, weights, _DENSE_RATE, _DENSE_MEMORY) / threads + _DENSE_CALLS
    left = f"{nnz / weights if weights else 1.0:.1%} of the weights left"
    if sparse < _MARGIN * dense:
        reason = f"{left}; dense would take {dense / sparse:.1f}x as long (estimated)"
        return PrunedPlan(True, sparse, dense, reason)
    reason = f"{left}; sparse would take {sparse / dense:.1f}x as long as dense (estimated)"
    return PrunedPlan(False, sparse, dense, reason)


def _seconds(request: PrunedRequest, weights: int, rate: float, memory: _Memory) -> float:
    """Of a core, for a layer that multiplies by so many weights."""
    O, C, KH, KW = request.shape
    input, output, weight = memory[KH * KW > 1]
    inputs = request.B * request.H * request.W * request.channels
    positions = request.B * math.prod(request.output_size)
    moved = inputs * input + positions * O * output + O * C * KH * KW * weight
    return 3 * weights * positions / rate + moved
