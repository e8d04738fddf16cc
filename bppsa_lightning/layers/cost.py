"""Sparse or dense: the choice for one pruned layer, by density and shape.

Both are estimated for a forward and a backward on this machine's cores, float32:

    sparse = entries · positions · 3 / rate  +  channels in and out · positions / memory  +  calls
    dense  = weights · positions · 3 / rate  +  weights / memory (the mask's product)     +  calls

with a position a pixel of the output of one sample. The dense rate falls where there are few
positions to use a weight for. Constants: experiments/records/planner_sparse_cpu.json.
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


# A core's: multiply-adds a second (of the dense layer at its best), numbers a second to and from
# memory; and seconds a call.
_SPARSE_RATE = 18e9
_DENSE_RATE = 55e9
_NUMBERS = 1.0e9
_CALLS = 150e-6


def choose(pattern: SparsePattern, B: int, H: int, W: int) -> Plan:
    """The plan for B samples of H by W pixels."""
    rows, columns = pattern.output_size(H, W)
    O, C, KH, KW = pattern.shape
    positions = B * rows * columns
    numbers = B * H * W * pattern.in_channels + positions * O
    return _choose(
        pattern.nnz, O * C * KH * KW, positions, numbers, KH * KW, torch.get_num_threads()
    )


@lru_cache(maxsize=4096)
def _choose(nnz: int, weights: int, positions: int, numbers: int, taps: int, threads: int) -> Plan:
    sparse = 3 * nnz * positions / (_SPARSE_RATE * threads)
    sparse += (4 * numbers + weights) / (_NUMBERS * threads) + _CALLS
    dense = 3 * weights * positions / (_DENSE_RATE * threads)
    dense += (numbers + 6 * weights) / (_NUMBERS * threads) + _CALLS
    better = sparse < dense
    ratio = dense / sparse if better else sparse / dense
    density = nnz / weights if weights else 1.0
    other, slower = ("dense", "sparse") if better else ("sparse", "dense")
    reason = f"density {density:.3f}: {other} is estimated {ratio:.1f}x as long"
    return Plan(better, sparse, dense, reason)
