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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

from bppsa_lightning.planner.machine import cpu, keeps


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


@dataclass(frozen=True)
class _Way:
    """What one of the two ways costs on a CPU, in seconds.

    Attributes:
        rate: multiply-adds a second of a core.
        entry: seconds of a core for a surviving weight, beside its multiply-adds.
        memory: seconds of a core for a number of the input, of the output and of the weight: for
            kernels of one tap, and for others (a padded copy is made here, weights are rearranged
            there).
        calls: seconds, whatever the size.
    """

    rate: float
    entry: float
    memory: Sequence[Sequence[float]]
    calls: float

    def seconds(self, request: PrunedRequest, weights: int, threads: int) -> float:
        """For a layer that multiplies by so many weights."""
        O, C, KH, KW = request.shape
        input, output, weight = self.memory[KH * KW > 1]
        inputs = request.B * request.H * request.W * request.channels
        positions = request.B * math.prod(request.output_size)
        moved = inputs * input + positions * O * output + O * C * KH * KW * weight
        work = 3 * weights * positions / self.rate + moved + request.nnz * self.entry
        return work / threads + self.calls


@keeps
@lru_cache(maxsize=1)
def _ways() -> tuple[_Way, _Way]:
    """Sparse and dense, on this machine."""
    found = cpu()["pruned"]
    return _Way(**found["sparse"]), _Way(**found["dense"])


# What is near is not worth the risk: the sparse layer must be estimated to be this much faster.
_MARGIN = 0.87


def choose(request: PrunedRequest) -> PrunedPlan:
    """The plan for a pruned layer and a size of its input."""
    return _choose(request, torch.get_num_threads())


@keeps
@lru_cache(maxsize=4096)
def _choose(request: PrunedRequest, threads: int) -> PrunedPlan:
    nnz, weights = request.nnz, math.prod(request.shape)
    few, all = _ways()
    sparse, dense = few.seconds(request, nnz, threads), all.seconds(request, weights, threads)
    left = f"{nnz / weights if weights else 1.0:.1%} of the weights left"
    if sparse < _MARGIN * dense:
        reason = f"{left}; dense would take {dense / sparse:.1f}x as long (estimated)"
        return PrunedPlan(True, sparse, dense, reason)
    near = ", which is too near to tell" if sparse < dense else ""
    reason = f"{left}; sparse would take {sparse / dense:.1f}x as long as dense (estimated){near}"
    return PrunedPlan(False, sparse, dense, reason)
