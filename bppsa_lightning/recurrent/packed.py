"""Sequences of different lengths as one scan: packed data spread over padded tensors, and back.

T steps, B batch, F features, H hidden, P state that is shown, N numbers of steps of all samples,
R rows of all padded tensors.

A `PackedSequence` holds the rows (N, F) of all steps, sorted by step and, in a step, by falling
length of the sample. Each sample's row t goes to step t of a padded tensor, in the reverse
direction to step length-1-t: both directions are then scanned forwards, every sample begins at
step 0 with its own initial state, and nobody reads what follows its end.

Two things could still come from behind an end:

- an LSTM's c_n is that of the last step, so c must stand still over the padding. It does where
  the gates are f = 1 and i = 0, exactly: one more input feature, 1 in padded steps and 0 in all
  others, drives both gates there. Its column of weights is no parameter.
- relu states may overflow behind an end, and 0 * inf in a parameter's gradient is a NaN. Then that
  scan is done again with samples of one length at a time, where nothing is padded. To ask would
  be to wait for a GPU, and is impossible under a transform of torch.func: there the additional
  feature holds relu states too, at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from bppsa_lightning._cells import Cell
from bppsa_lightning._context import is_transformed
from bppsa_lightning.recurrent.config import RecurrentConfig

Tensors = Sequence[Tensor]

# x, initial states, weights, reverse, place among the module's layers and directions -> output and
# last states: one direction of one layer.
Scan = Callable[[Tensor, Tensors, Tensors, bool, int], tuple[Tensor, ...]]

Array = npt.NDArray[np.int64]

# Padded rows for each row of data above which samples are padded in groups of similar length.
MAX_PADDING_RATIO = 4

# Far beyond what a gate gets from weights; the products with it stay in float32's range.
_FREEZING = 1e18


class PackedScan:
    """A scan of packed data, made of a scan of tensors: x (N, F) -> output (N, P), last states.

    Args:
        scan: of x (T, B, F).
        config: of the module.
        batch_sizes: (T,) int64 on the CPU, falling: as in a PackedSequence.
        device: of the data.
    """

    def __init__(
        self, scan: Scan, config: RecurrentConfig, batch_sizes: Tensor, device: torch.device
    ) -> None:
        self._scan, self._cell = scan, config.cell
        self._batch_sizes = np.array(batch_sizes.tolist())  # (transforms refuse numpy())
        self._device = device
        self._lengths = _lengths(self._batch_sizes)
        self._rows = self._in_groups(_of_similar_length)
        relu, syncs = config.cell.name == "rnn_relu", check_syncs(device) or is_transformed()
        self._checks_overflow = relu and not syncs
        self._freezes_padding = config.cell.has_c or (relu and syncs)

    def __call__(
        self, x: Tensor, states: Tensors, weights: Tensors, reverse: bool, place: int
    ) -> tuple[Tensor, ...]:
        padded, *cells = self._padded(self._rows, x, states, weights, reverse, place)
        rows = self._rows
        if self._checks_overflow and not padded.detach().sum().isfinite():
            rows = self._in_groups(_of_equal_length)
            padded, *cells = self._padded(rows, x, states, weights, reverse, place)
        output = _gather(padded, rows.of(reverse))
        return (output, output.index_select(0, rows.last(reverse)), *cells)

    def _in_groups(self, grouped: Callable[[list[int]], list[int]]) -> _Rows:
        starts = grouped(self._lengths.tolist())
        return _Rows(self._batch_sizes, self._lengths, starts, self._device)

    def _padded(
        self,
        rows: _Rows,
        x: Tensor,
        states: Tensors,
        weights: Tensors,
        reverse: bool,
        place: int,
    ) -> list[Tensor]:
        """The groups' outputs (R, P), and an LSTM's c_n (B, H)."""
        if self._freezes_padding:
            w_ih = with_frozen_padding(weights[0], self._cell)
            x, weights = pad(x, (0, 1)), [w_ih, *weights[1:]]
        padded = _spread(x, rows.of(reverse), rows.total, self._freezes_padding)
        blocks = padded.split(rows.sizes)
        parts = [state.split(rows.samples) for state in states]
        results = []
        for i, block in enumerate(blocks):
            first = [part[i] for part in parts]
            output, _, *cell = self._scan(
                block.view(rows.steps[i], rows.samples[i], -1), first, weights, False, place
            )
            results.append((output.flatten(0, 1), *cell))
        return [
            torch.cat(same) if len(same) > 1 else same[0] for same in zip(*results, strict=True)
        ]


class _Rows:
    """Where the rows of packed data lie in padded tensors, one for each group of samples.

    Args:
        batch_sizes: (T,), falling. lengths: (B,), falling.
        starts: the first sample of each group.
        device: of the data.

    Attributes:
        samples, steps, sizes: B, T and B*T of each group.
        total: R.
    """

    def __init__(
        self, batch_sizes: Array, lengths: Array, starts: list[int], device: torch.device
    ) -> None:
        first = np.array(starts)
        samples = np.append(first[1:], len(lengths)) - first
        sizes = samples * lengths[first]
        self.samples, self.steps = samples.tolist(), lengths[first].tolist()
        self.sizes, self.total = sizes.tolist(), int(sizes.sum())
        self._lengths, self._device = lengths, device
        self._of: dict[bool, Tensor] = {}
        self._last: dict[bool, Tensor] = {}

        # Of each sample: the padded row of its step 0, and the rows from there to its next step.
        self._sample = np.arange(len(lengths))
        self._base = self._sample + (sizes.cumsum() - sizes - first).repeat(samples)
        self._stride = samples.repeat(samples)

        # Of each row of data: its step and its sample.
        self._t = np.arange(len(batch_sizes)).repeat(batch_sizes)
        self._before = batch_sizes.cumsum() - batch_sizes
        self._b = np.arange(len(self._t)) - self._before[self._t]

    def of(self, reverse: bool) -> Tensor:
        """(N,), the padded row of each row of data, in one direction."""
        if reverse not in self._of:
            step = self._lengths[self._b] - 1 - self._t if reverse else self._t
            rows = self._base[self._b] + self._stride[self._b] * step
            self._of[reverse] = _moved(rows, self._device)
        return self._of[reverse]

    def last(self, reverse: bool) -> Tensor:
        """(B,), the row of data of each sample's last state, in one direction."""
        if reverse not in self._last:
            ends = self._before[self._lengths - 1] + self._sample
            self._last[reverse] = _moved(self._sample if reverse else ends, self._device)
        return self._last[reverse]


def _spread(data: Tensor, rows: Tensor, total: int, freezes: bool) -> Tensor:
    if not is_transformed():
        padded: Tensor = _Spread.apply(data, rows, total, freezes)
        return padded
    padded = data.new_zeros(total, data.shape[1])
    if freezes:
        padded[:, -1] = 1
    return padded.index_copy(0, rows, data)


def _gather(padded: Tensor, rows: Tensor) -> Tensor:
    gathered: Tensor = (
        padded.index_select(0, rows) if is_transformed() else _Gather.apply(padded, rows)
    )
    return gathered


class _Spread(torch.autograd.Function):
    """Rows of a tensor (R, P) from data (N, P), other rows 0; their last column 1 if that freezes.

    Unlike index_copy's, its gradient does not need the data, which may be changed in place.
    """

    @staticmethod
    def forward(ctx: Any, data: Tensor, rows: Tensor, total: int, freezes: bool) -> Tensor:
        ctx.save_for_backward(rows)
        padded = data.new_zeros(total, data.shape[1])
        if freezes:
            padded[:, -1] = 1
        return padded.index_copy_(0, rows, data)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (rows,) = ctx.saved_tensors
        return grad.index_select(0, rows), None, None, None


class _Gather(torch.autograd.Function):
    """Rows of a tensor (R, P), each read at most once: its gradient is copied, not added up."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.total = len(padded)
        return padded.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return grad.new_zeros(ctx.total, grad.shape[1]).index_copy(0, rows, grad), None


def padded_steps(batch_sizes: Tensor) -> int:
    """The steps, one after the other, of all padded tensors that such samples are spread over."""
    lengths = _lengths(batch_sizes.numpy())
    return int(lengths[_of_similar_length(lengths.tolist())].sum())


def check_syncs(device: torch.device) -> bool:
    """Whether a look at a result would make the host wait."""
    return device.type == "cuda"


def _moved(rows: Array, device: torch.device) -> Tensor:
    """On a device, without waiting for it."""
    places = torch.from_numpy(rows)
    if device.type == "cuda":
        return places.pin_memory().to(device, non_blocking=True)
    return places.to(device)


def _lengths(batch_sizes: Array) -> Array:
    """(B,) of each sample: in how many steps there are more samples than those before it."""
    ascending = batch_sizes[::-1]
    return len(batch_sizes) - np.searchsorted(ascending, np.arange(batch_sizes[0]), side="right")


def _of_similar_length(lengths: list[int]) -> list[int]:
    """Where groups start: one for all, or each of samples at least half as long as its first."""
    if lengths[0] * len(lengths) <= MAX_PADDING_RATIO * sum(lengths):
        return [0]
    starts = [0]
    for sample, length in enumerate(lengths):
        if 2 * length < lengths[starts[-1]]:
            starts.append(sample)
    return starts


def _of_equal_length(lengths: list[int]) -> list[int]:
    return [b for b, length in enumerate(lengths) if not b or length != lengths[b - 1]]


def with_frozen_padding(w_ih: Tensor, cell: Cell) -> Tensor:
    """w_ih (G*H, F) with one more column, under which an LSTM's c, or a relu's 0, stands still."""
    column = w_ih.new_zeros(len(w_ih), 1)
    if cell.has_c:
        H = len(w_ih) // cell.gates
        column[:H] = -_FREEZING
        column[H : 2 * H] = _FREEZING
    else:
        column.fill_(torch.finfo(w_ih.dtype).min)
    return torch.cat([w_ih, column], 1)
