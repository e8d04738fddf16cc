"""Sparse or dense: the choice for one pruned layer, by density and shape.

Both are estimated for a forward and a backward, a position being a pixel of one sample's output:

    sparse = 3 · surviving weights · positions / rate + surviving weights · entry
             + numbers in and out · memory + weights · memory (taken and put) + calls
    dense  = 3 · weights · positions / rate
             + numbers in and out · memory + weights · memory (the mask's product and more) + calls

The constants fit two cores in float32, most to a quarter and all to a factor of two, what is
uncertain in favour of dense; experiments/benchmark_sparse.py records both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from bppsa_lightning.ops import SparsePattern


@dataclass(frozen=True)
class Plan:
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


@dataclass(frozen=True)
class _Memory:
    """Seconds of a core for a number of the input, of the output and of the weight."""

    input: float
    output: float
    weight: float


# For kernels of one tap, and for others: a padded copy is made here, weights are rearranged there.
_SPARSE_MEMORY = (_Memory(1.5e-9, 1.2e-9, 0.6e-9), _Memory(4e-9, 1.2e-9, 0.6e-9))
_DENSE_MEMORY = (_Memory(0.8e-9, 0.8e-9, 1.6e-9), _Memory(0.8e-9, 0.8e-9, 3.5e-9))
_SPARSE_CALLS, _DENSE_CALLS = 190e-6, 80e-6  # seconds
# What is near is not worth the risk: the sparse layer must be estimated to be this much faster.
_MARGIN = 0.87


@dataclass(frozen=True)
class _Size:
    """Numbers of a layer's input, output and weight; output pixels of all samples; kernel taps."""

    input: int
    output: int
    weight: int
    positions: int
    taps: int

    def seconds(self, weights: int, rate: float, memory: tuple[_Memory, _Memory]) -> float:
        """Of a core, for a layer that multiplies by so many weights."""
        each = memory[self.taps > 1]
        moved = self.input * each.input + self.output * each.output + self.weight * each.weight
        return 3 * weights * self.positions / rate + moved


def choose(pattern: SparsePattern, B: int, H: int, W: int) -> Plan:
    """The plan for B samples of H by W pixels."""
    rows, columns = pattern.output_size(H, W)
    O, C, KH, KW = pattern.shape
    positions = B * rows * columns
    inputs = B * H * W * pattern.in_channels
    size = _Size(inputs, positions * O, O * C * KH * KW, positions, KH * KW)
    return _choose(size, pattern.nnz, torch.get_num_threads())


@lru_cache(maxsize=4096)
def _choose(size: _Size, nnz: int, threads: int) -> Plan:
    sparse = size.seconds(nnz, _SPARSE_RATE, _SPARSE_MEMORY) + nnz * _ENTRY
    sparse = sparse / threads + _SPARSE_CALLS
    dense = size.seconds(size.weight, _DENSE_RATE, _DENSE_MEMORY) / threads + _DENSE_CALLS
    density = nnz / size.weight if size.weight else 1.0
    if sparse < _MARGIN * dense:
        reason = f"density {density:.3f}: dense is estimated {dense / sparse:.1f}x as long"
        return Plan(True, sparse, dense, reason)
    reason = f"density {density:.3f}: sparse is estimated {sparse / dense:.1f}x as long as dense"
    return Plan(False, sparse, dense, reason)
