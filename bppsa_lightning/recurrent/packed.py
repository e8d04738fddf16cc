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

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from bppsa_lightning._cells import Cell
from bppsa_lightning._context import in_modes, is_tracing, is_transformed
from bppsa_lightning.recurrent.rows import (
    Rows,
    Sequences,
    may_pass_over,
    of_equal_length,
    of_similar_length,
)

Tensors = Sequence[Tensor]

# x, initial states, weights, reverse, place among the module's layers and directions -> output and
# last states: one direction of one layer.
Scan = Callable[..., tuple[Tensor, ...]]

# Far beyond what a gate gets from weights; the products with it stay in float32's range.
_FREEZING = 1e18


class PackedScan:
    """A scan of packed data, made of a scan of tensors: x (N, F) -> output (N, P), last states.

    Args:
        scan: of x (T, B, F).
        cell: that is scanned.
        sequences: where they lie in the data, B of them, by falling length.
        device: of the data.
        marks: whether the scan asks for one more feature, 1 in padding and 0 elsewhere, and holds
            all states there; else that is left to weights, as above.
        grouped: where groups of samples start, from their falling lengths.
        row_work: multiply-adds of a step of a sample, if the scan can be told where samples end
            (`ops.Ragged`), and 0 else.
    """

    def __init__(
        self, scan: Scan, cell: Cell, sequences: Sequences, device: torch.device,
        marks: bool = False, grouped: Callable[[list[int]], list[int]] = of_similar_length,
        row_work: int = 0,
    ) -> None:  # fmt: skip
        self._scan, self._cell, self._marks = scan, cell, marks
        self._sequences, self._device = sequences, device
        self._row_work = 0
        if device.type == "cpu" and row_work and may_pass_over(sequences.lengths, row_work):
            plain = not (is_transformed() or is_tracing() or in_modes())
            self._row_work = row_work if plain else 0
        self._rows = self._in_groups(grouped)
        relu, syncs = cell.name == "rnn_relu", check_syncs(device) or is_transformed()
        self._checks_overflow = relu and not syncs and not marks
        self._freezes_padding = marks or cell.has_c or (relu and syncs)

    def __call__(
        self, x: Tensor, states: Tensors, weights: Tensors, reverse: bool, place: int
    ) -> tuple[Tensor, ...]:
        padded, *cells = self._padded(self._rows, x, states, weights, reverse, place)
        rows = self._rows
        if self._checks_overflow and not padded.detach().sum().isfinite():
            rows = self._in_groups(of_equal_length)
            padded, *cells = self._padded(rows, x, states, weights, reverse, place)
        output = gather(padded, rows.of(reverse))
        return (output, output.index_select(0, rows.last(reverse)), *cells)

    def _in_groups(self, grouped: Callable[[list[int]], list[int]]) -> Rows:
        starts = grouped(self._sequences.lengths.tolist())
        return Rows(self._sequences, starts, self._device, self._row_work)

    def _padded(
        self,
        rows: Rows,
        x: Tensor,
        states: Tensors,
        weights: Tensors,
        reverse: bool,
        place: int,
    ) -> list[Tensor]:
        """The groups' outputs (R, P), and an LSTM's c_n (B, H)."""
        if self._freezes_padding:
            x = pad(x, (0, 1))
        if self._freezes_padding and not self._marks:
            weights = [with_frozen_padding(weights[0], self._cell), *weights[1:]]
        padded = spread(x, rows.of(reverse), rows.total, self._freezes_padding)
        blocks = padded.split(rows.sizes)
        parts = [state.split(rows.samples) for state in states]
        results = []
        for i, block in enumerate(blocks):
            first = [part[i] for part in parts]
            x_i = block.view(rows.steps[i], rows.samples[i], -1)
            if (ragged := rows.ragged[i]) is None:
                output, _, *cell = self._scan(x_i, first, weights, False, place)
            else:
                order, column, told = ragged
                first = [state.index_select(0, order) for state in first]
                output, _, *cell = self._scan(x_i, first, weights, False, place, ragged=told)
                cell = [c.index_select(0, column) for c in cell]
            results.append((output.flatten(0, 1), *cell))
        return [
            torch.cat(same) if len(same) > 1 else same[0] for same in zip(*results, strict=True)
        ]


def spread(data: Tensor, rows: Tensor, total: int, freezes: bool) -> Tensor:
    """Data (N, F) to rows (N,) of a tensor (total, F), as `_Spread`; also under transforms."""
    if not is_transformed():
        padded: Tensor = _Spread.apply(data, rows, total, freezes)
        return padded
    padded = data.new_zeros(total, data.shape[1])
    if freezes:
        padded[:, -1] = 1
    return padded.index_copy(0, rows, data)


def gather(padded: Tensor, rows: Tensor) -> Tensor:
    """The reverse."""
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


def check_syncs(device: torch.device) -> bool:
    """Whether a look at a result would make the host wait."""
    return device.type == "cuda"


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
