"""A rank's steps of a `PackedSequence`, which are a `PackedSequence` themselves.

T steps of this rank, B samples, N numbers of steps of all samples, F features, P ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from bppsa_lightning.recurrent.packed import gather, spread
from bppsa_lightning.recurrent.rows import moved, steps_and_samples

# What ranks tell each other of theirs.
TOLD = "", "", ""
OF_DENSE = 0, 0, 0


class PackedSpan(NamedTuple):
    """Where the steps of some samples lie in a padded tensor.

    Attributes:
        T, B: of it. rows: (N,), of each row of data.
        steps: (1, B) on the CPU, how many of the steps each sample has; they are the first ones.
    """

    T: int
    B: int
    rows: Tensor
    steps: Tensor

    @classmethod
    def of(cls, batch_sizes: Tensor, B: int, device: torch.device) -> PackedSpan:
        """Of the (T,) numbers of samples that have each step."""
        T = len(batch_sizes)
        step, sample = steps_and_samples(batch_sizes.numpy())
        steps = (batch_sizes[None, :] > torch.arange(B, device="cpu")[:, None]).sum(1)
        return cls(T, B, moved(step * B + sample, device), steps[None])

    def padded(self, data: Tensor) -> Tensor:
        """(N, F) -> (T, B, F)."""
        found = spread(data, self.rows, self.T * self.B, False)
        return found.view(self.T, self.B, data.shape[1])

    def data(self, padded: Tensor) -> Tensor:
        """(T, B, F) -> (N, F)."""
        return gather(padded.flatten(0, 1), self.rows)


def samples_known(input: PackedSequence, states: Sequence[Any]) -> int:
    """B, as far as one rank knows it, of samples that may have ended before its steps; else 0.

    Args:
        states: that it was given, whatever they are.
    """
    if input.sorted_indices is not None:
        return len(input.sorted_indices)
    h0 = states[0] if states else None
    return h0.shape[1] if isinstance(h0, Tensor) and h0.dim() == 3 else 0


def told(input: PackedSequence, states: Sequence[Tensor]) -> tuple[int, int, int]:
    """What the other ranks have to know."""
    sizes = input.batch_sizes.tolist() or [0]
    return samples_known(input, states), sizes[0], sizes[-1]


def samples(name: str, of_ranks: Sequence[Sequence[int]], lengths: Sequence[int]) -> int:
    """B, of what all ranks have `told` and how many steps they hold.

    Raises:
        ValueError: these are not the parts of one sequence. Every rank raises it.
    """
    holders = [(rank, *of_ranks[rank]) for rank, T in enumerate(lengths) if T]
    if not holders:
        return max(known for known, _, _ in of_ranks)
    B, before = holders[0][2], holders[0][2]
    for rank, _, first, last in holders:
        if first > before:
            raise ValueError(
                f"{name}: rank {rank} of the chain brought a PackedSequence whose first step has "
                f"{first} samples, and the step before it, of another rank, has {before}; wanted "
                "the steps that follow those of the rank before, of the same samples"
            )
        before = last
    for rank, (known, _, _) in enumerate(of_ranks):
        if known not in (0, B):
            raise ValueError(
                f"{name}: rank {rank} of the chain brought a PackedSequence of {known} samples (by "
                f"its sorted_indices, or by hx); wanted {B}, as the first step has"
            )
    return B
