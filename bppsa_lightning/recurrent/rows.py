"""Where sequences of different lengths lie: in the rows of their data, and in padded tensors.

T steps, B samples, N rows of data, S sequences, R rows of all padded tensors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bppsa_lightning import ops

Array = npt.NDArray[np.int64]

# Padded rows for each row of data above which samples are padded in groups of similar length.
MAX_PADDING_RATIO = 4
# Multiply-adds of padding from which on it is worth passing over: that takes some 25 us of Python.
_LEAST_WORK = 1 << 21
# Steps, the last of which has samples that have ended as well: csrc/recurrent/ragged.h.
_STEPS = 8


class Sequences(NamedTuple):
    """The sequences in some data, by falling length.

    Attributes:
        lengths: (S,).
        sequence, step: (N,) of each row of data.
        first, last: (S,) rows of each sequence's ends.
    """

    lengths: Array
    sequence: Array
    step: Array
    first: Array
    last: Array

    @classmethod
    def of_packed(cls, batch_sizes: Array) -> Sequences:
        """The samples of a `PackedSequence`, from (T,) falling numbers of them."""
        lengths = lengths_of(batch_sizes)
        step, sample = steps_and_samples(batch_sizes)
        every = np.arange(len(lengths))
        before = batch_sizes.cumsum() - batch_sizes
        return cls(lengths, sample, step, every, before[lengths - 1] + every)


class Rows:
    """Where rows of data lie in padded tensors, one for each group of sequences.

    Args:
        sequences: S of them. starts: the first sequence of each group.
        device: of the data.
        row_work: multiply-adds of a row, if kernels can pass over padding, and 0 else.

    Attributes:
        samples, steps, sizes: S, T and S*T of each group.
        total: R.
        ragged: of each group, None where its sequences lie in the order of their lengths; else
            which of them lies in each column, each one's column, and what kernels are told.
    """

    def __init__(
        self, sequences: Sequences, starts: list[int], device: torch.device, row_work: int = 0
    ) -> None:
        first, lengths = np.array(starts), sequences.lengths
        samples = np.append(first[1:], len(lengths)) - first
        sizes = samples * lengths[first]
        self.samples, self.steps = samples.tolist(), lengths[first].tolist()
        self.sizes, self.total = sizes.tolist(), int(sizes.sum())
        self._sequences, self._device = sequences, device
        self._of: dict[bool, Tensor] = {}
        self._last: dict[bool, Tensor] = {}

        # Of each sequence: the padded row of its step 0, and the rows from there to its next step.
        columns = np.arange(len(lengths)) - first.repeat(samples)
        self._base = columns + (sizes.cumsum() - sizes).repeat(samples)
        self._stride = samples.repeat(samples)
        self.ragged: list[tuple[Tensor, Tensor, ops.Ragged] | None] = []
        if not row_work:
            self.ragged = [None] * len(starts)
            return
        for a, n in zip(first, samples, strict=True):
            of_group = lengths[a : a + n]
            if not passes_over(of_group, row_work):
                self.ragged.append(None)
                continue
            order, groups = ops.side_by_side(int(n), torch.get_num_threads())
            column = np.argsort(order)
            self._base[a : a + n] += column - np.arange(n)
            told = ops.Ragged(torch.from_numpy(of_group[order]), groups)
            self.ragged.append((torch.from_numpy(order), torch.from_numpy(column), told))

    def of(self, reverse: bool) -> Tensor:
        """(N,), the padded row of each row of data, in one direction."""
        if reverse not in self._of:
            lengths, sequence, step, *_ = self._sequences
            if reverse:
                step = lengths[sequence] - 1 - step
            rows = self._base[sequence] + self._stride[sequence] * step
            self._of[reverse] = moved(rows, self._device)
        return self._of[reverse]

    def last(self, reverse: bool) -> Tensor:
        """(S,), the row of data of each sequence's last state, in one direction."""
        if reverse not in self._last:
            ends = self._sequences.first if reverse else self._sequences.last
            self._last[reverse] = moved(ends, self._device)
        return self._last[reverse]


def may_pass_over(lengths: Array, row_work: int) -> bool:
    """Whether there may be padding enough, by a look at the longest: for short calls."""
    return int(lengths[0]) * len(lengths) * row_work >= _LEAST_WORK


def passes_over(lengths: Array, row_work: int) -> bool:
    """Whether kernels had better pass over the padding of samples by falling lengths.

    Of few samples they would not: threads may share the units of these.

    Args:
        row_work: as of `Rows`.
    """
    if not may_pass_over(lengths, row_work) or len(lengths) <= 2 * torch.get_num_threads():
        return False
    walked = np.minimum(-(-lengths // _STEPS) * _STEPS, lengths[0])
    return int(lengths[0] * len(lengths) - walked.sum()) * row_work >= _LEAST_WORK


def padded_steps(batch_sizes: Tensor) -> int:
    """The steps, one after the other, of all padded tensors that such samples are spread over."""
    lengths = lengths_of(batch_sizes.numpy())
    return int(lengths[of_similar_length(lengths.tolist())].sum())


def steps_and_samples(batch_sizes: Array) -> tuple[Array, Array]:
    """(N,) each, of the rows of a `PackedSequence`, from (T,) numbers of samples."""
    step = np.arange(len(batch_sizes)).repeat(batch_sizes)
    return step, np.arange(len(step)) - (batch_sizes.cumsum() - batch_sizes)[step]


def lengths_of(batch_sizes: Array) -> Array:
    """(B,) of each sample: in how many steps there are more samples than those before it."""
    ascending = batch_sizes[::-1]
    return len(batch_sizes) - np.searchsorted(ascending, np.arange(batch_sizes[0]), side="right")


def of_similar_length(lengths: list[int]) -> list[int]:
    """Where groups start: one for all, or each of samples at least half as long as its first."""
    if lengths[0] * len(lengths) <= MAX_PADDING_RATIO * sum(lengths):
        return [0]
    starts = [0]
    for sample, length in enumerate(lengths):
        if 2 * length < lengths[starts[-1]]:
            starts.append(sample)
    return starts


def cheapest(lengths: list[int], step_rows: int, row_work: int = 0) -> list[int]:
    """Where groups start so that they are walked soonest, if a step costs `step_rows` more rows.

    Few long sequences among many short ones are walked by themselves, which a rule by the sum of
    all padding does not see.

    Args:
        row_work: as of `Rows`. Padding that kernels pass over costs memory alone.
    """
    if passes_over(np.array(lengths), row_work):
        return of_similar_length(lengths)
    starts = of_equal_length(lengths)
    of = np.array(lengths)[starts]
    bounds = np.array([*starts, len(lengths)])
    n = len(starts)
    # From group i on: the least cost, and the group that follows the one which starts there.
    cost, following = np.zeros(n + 1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for i in reversed(range(n)):
        costs = of[i] * (step_rows + bounds[i + 1 :] - bounds[i]) + cost[i + 1 :]
        best = costs.argmin()
        cost[i], following[i] = costs[best], i + 1 + best
    chosen, i = [], 0
    while i < n:
        chosen.append(starts[i])
        i = int(following[i])
    return chosen


def of_equal_length(lengths: list[int]) -> list[int]:
    """Where groups start, each of samples of one length."""
    return [b for b, length in enumerate(lengths) if not b or length != lengths[b - 1]]


def moved(rows: Array, device: torch.device) -> Tensor:
    """On a device, without waiting for it."""
    places = torch.from_numpy(rows)
    if device.type == "cuda":
        return places.pin_memory().to(device, non_blocking=True)
    return places.to(device)
