"""Sequences that begin anew at resets: what lies between two of them is a sequence of its own.

T steps, B samples, N rows of data, S segments, F features, P state that is shown, H hidden.

Segments are to data what samples are to a `PackedSequence`, so that a `PackedScan` does the rest:
each direction begins anew in each segment, and no kernel knows of resets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bppsa_lightning.recurrent.packed import Scan, Tensors
from bppsa_lightning.recurrent.rows import Array, Sequences, moved

Bools = npt.NDArray[np.bool_]


class Segments(NamedTuple):
    """The segments of samples that are reset.

    Attributes:
        sequences: where they lie.
        sample: (S,), the sample of each.
        first, last: (S,) bool, whether it is its sample's first, and last.
        reset: (S,) bool, whether there is a reset before its first step.
    """

    sequences: Sequences
    sample: Array
    first: Bools
    last: Bools
    reset: Bools

    @classmethod
    def of(cls, reset: Bools, lengths: Array | None = None) -> Segments:
        """Those of a mask.

        Args:
            reset: (T, B), whether a sample is reset before a step.
            lengths: (B,) falling, of the samples of a `PackedSequence`, in whose order reset is;
                None if the data is of T steps each.
        """
        T, B = reset.shape
        ends = np.full(B, T) if lengths is None else lengths
        there = np.arange(T) < ends[:, None]  # (B, T)
        starts = reset.T & there
        starts[:, 0] = True
        sample, start = starts.nonzero()  # by samples, then steps
        first, last = start == 0, np.append(start[1:] == 0, True)
        length = np.where(last, ends[sample], np.append(start[1:], 0)) - start

        # By falling length, as a scan of packed data wants them.
        order = np.argsort(-length, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        number = starts.cumsum().reshape(B, T) - 1
        sequence, step = place[number], np.arange(T) - start[number]
        row = there.T.cumsum().reshape(T, B).T - 1  # (B, T), of the data
        rows_first = row[sample, start]
        rows_last = row[sample, start + length - 1]
        sequences = Sequences(
            length[order], sequence.T[there.T], step.T[there.T], rows_first[order], rows_last[order]
        )
        anew = reset[start, sample]
        return cls(sequences, sample[order], first[order], last[order], anew[order])

    def origin(self, reverse: bool, to_initial: bool) -> Array:
        """(S,), the sample in whose initial state each begins in one direction; B for zeros."""
        if to_initial:
            return self.sample
        begins = self.last if reverse else self.first & ~self.reset
        return np.where(begins, self.sample, self.first.sum())

    def final(self, reverse: bool) -> Array:
        """(B,), the segment in which one direction of each sample ends."""
        [ends] = (self.first if reverse else self.last).nonzero()
        return ends[np.argsort(self.sample[ends])]


class ResetScan:
    """A scan of data with resets, x (T, B, F) or (N, F), made of one of its segments.

    Args:
        scan: of x (N, F) and the initial states of S segments.
        segments: of the data, on a device.
        to_initial: whether a reset is to the initial state; else to zeros.
    """

    def __init__(
        self, scan: Scan, segments: Segments, to_initial: bool, device: torch.device
    ) -> None:
        self._scan, self._segments = scan, segments
        self._origin, self._final = (
            [moved(places, device) for places in both]
            for both in (
                [segments.origin(reverse, to_initial) for reverse in (False, True)],
                [segments.final(reverse) for reverse in (False, True)],
            )
        )
        self._to_initial = to_initial

    def __call__(
        self, x: Tensor, states: Tensors, weights: Tensors, reverse: bool, place: int
    ) -> tuple[Tensor, ...]:
        data = x if x.dim() == 2 else x.flatten(0, 1)
        first = [self._spread(state, reverse) for state in states]
        output, *last = self._scan(data, first, weights, reverse, place)
        final = self._final[reverse]
        return output.view(*x.shape[:-1], -1), *(state.index_select(0, final) for state in last)

    def _spread(self, state: Tensor, reverse: bool) -> Tensor:
        """(B, P or H), or one for each segment."""
        if not self._to_initial:
            state = torch.cat([state, state.new_zeros(1, state.shape[1])])
        return state.index_select(0, self._origin[reverse])
