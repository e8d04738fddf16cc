"""One direction of one recurrent layer as an engine: our kernels, or PyTorch's.

Letters as in ops/recurrent.py.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import ops, planner
from bppsa_lightning._cells import CELLS
from bppsa_lightning._context import for_graphs
from bppsa_lightning.recurrent.in_place import KernelsAtOnce, KernelsInPlace
from bppsa_lightning.recurrent.one_piece import in_one_piece
from bppsa_lightning.windows import LEAST_WARM, choose_cut
from bppsa_lightning.windows.cut import Leaves
from bppsa_lightning.windows.engine import Engine, Walk

# Of the CPU kernels: csrc/recurrent/slots.h.
_TILE_ROWS = 4

# Seconds of windows on a CPU that are Python's, beside those of their calls: what leaves "auto"
# least behind, at sizes that tables have and at others (experiments/benchmarks/windows_auto.py).
_PYTHON_SECONDS = 110e-6

# How many times as fast windows must promise to be: less than what estimates are wrong by is no
# gain, and they are wrong by more where no step was measured with so many threads.
_GAIN, _UNMEASURED_GAIN = 1.05, 1.3
# On a GPU, beside a walk of all steps one after another: "auto" would pass gradients from chunk to
# chunk instead, which takes half of that at best; and windows make the host wait for them.
_GPU_GAIN = 3.0

# Seconds of a call on a CPU, and more for each weight: it is rearranged for both passes, and its
# gradient gathered from all threads, in 1.4 to 2.5 ns (RNN, GRU and LSTM up to 512 hidden units).
# On a GPU calls and steps cost as its table has them.
_CALL_SECONDS, _WEIGHT_SECONDS = 25e-6, 2e-9


def call_seconds(cell: str, H: int, I: int) -> float:
    """What a call on a CPU takes beside its steps, forward and backward."""
    return _CALL_SECONDS + _WEIGHT_SECONDS * CELLS[cell].gates * H * (H + I)


def least_gain() -> float:
    """Of windows on a CPU."""
    return _GAIN if planner.measured_with_as_many_threads() else _UNMEASURED_GAIN


def _calls(call: float) -> tuple[float, float]:
    """What windows take on a CPU beside their steps, without a head and with one, in calls."""
    more = _PYTHON_SECONDS / call
    return 1.5 + more, 3.5 + more


def _rows() -> int:
    """Samples that our kernels walk best on a CPU: whole tiles of rows on each thread.

    (Fewer windows would be long ones: one that missed is much to repair.)
    """
    return _TILE_ROWS * torch.get_num_threads()


class LayerEngine(Engine):
    """Our kernels: x (C, n, I) and h (n, P), c (n, H) -> output (C, n, P), h_n, c_n.

    Args:
        cell: a name of `CELLS`.
        weights: w_ih, w_hh, and b_ih, b_hh, w_hr, or None.
    """

    gain = _GAIN
    # Windows lie further apart in memory than samples, which no table knows: few are better.
    near = 1.15
    _PYTORCHS = False
    changes_state = False

    def __init__(self, cell: str, weights: Sequence[Tensor | None]) -> None:
        self.cell, self.weights = cell, [*weights, *[None] * (5 - len(weights))]
        self.tensors = [w for w in weights if w is not None]
        assert weights[0] is not None
        self.H, self.I = weights[0].shape[0] // CELLS[cell].gates, weights[0].shape[1]
        self._on_gpu, self.call = weights[0].is_cuda, call_seconds(cell, self.H, self.I)
        self.rows = 1 if self._on_gpu or self._PYTORCHS else _rows()
        if not self._on_gpu:
            self.gain, self.calls = least_gain(), _calls(self.call)
        else:
            costs = planner.costs_of_windows(cell, self.H, weights[0].device, self._PYTORCHS)
            self.call, self.rows_for_twice = costs
            self.gain = _GPU_GAIN
            if not self._PYTORCHS and self.weights[-1] is None:
                # In one launch, in which windows read and write side by side as samples do.
                self.calls, self.near = (1, 1), 1.02

    def cost(self, rows: int) -> float:
        if self._on_gpu:
            return super().cost(rows)
        return planner.step_seconds(self.cell, self.H, self.I, rows)

    @classmethod
    def may_pay(cls, cell: str, H: int, I: int, T: int) -> bool:
        """Whether windows of one sequence may, on a CPU, if it forgets as fast as any."""
        cost, call = partial(planner.step_seconds, cell, H, I), call_seconds(cell, H, I)
        cut = choose_cut(
            T, 1, LEAST_WARM, cost, call, least_gain(), cls.near, _rows(), _calls(call)
        )
        return cut is not None

    def __call__(self, xs: Leaves, state: Leaves) -> tuple[list[Tensor], list[Tensor]]:
        h0, c0 = (*state, None)[:2]
        operands = ops.Operands(xs[0], h0, c0, *self.weights)  # type: ignore[arg-type]
        output, h_n, c_n = ops.run_layer(self.cell, operands, False, "linear")
        return [output], [h_n, c_n] if CELLS[self.cell].has_c else [h_n]

    def in_place(
        self,
        xs: Leaves,
        state: Leaves,
        tensors: Sequence[Tensor],
        kept: bool,
        results: Sequence[Tensor] | None = None,
    ) -> KernelsAtOnce | KernelsInPlace | None:
        kind = self._in_place(xs[0])
        if kind is None:
            return None
        each = iter(tensors)
        weights = [None if w is None else next(each) for w in self.weights]
        return kind(self.cell, xs[0], state, weights, kept, results)

    def _in_place(self, x: Tensor) -> type[KernelsAtOnce | KernelsInPlace] | None:
        if x.is_cuda:
            return None if self.weights[-1] is not None else KernelsAtOnce
        return KernelsInPlace if x.is_cpu and x.shape[1] == 1 else None

    def with_own_tensors(self) -> "LayerEngine":
        return type(self)(self.cell, [_own(w) for w in self.weights])

    def with_tensors(self, tensors: Sequence[Tensor]) -> "LayerEngine":
        each = iter(tensors)
        return type(self)(self.cell, [None if w is None else next(each) for w in self.weights])

    def in_dtype(self, dtype: torch.dtype) -> Walk:
        return torch.no_grad()(self._converted(dtype).__call__)

    def converted(self, dtype: torch.dtype) -> "LayerEngine | None":
        return self._converted(dtype)

    def _converted(self, dtype: torch.dtype) -> "LayerEngine":
        weights = [None if w is None else for_graphs(w.detach().to(dtype)) for w in self.weights]
        return type(self)(self.cell, weights)


class PytorchEngine(LayerEngine):
    """PyTorch's kernels, for the same."""

    near = 1.05
    _PYTORCHS = True
    # On a CPU: seconds in which a step's operations are started, forward and backward, of the 240
    # and 76 us that a step of 256 units takes. An LSTM's steps are one call of oneDNN.
    _STARTS = {"gru": 200e-6, "rnn_tanh": 60e-6, "rnn_relu": 60e-6}

    def cost(self, rows: int) -> float:
        return super().cost(rows) + (0.0 if self._on_gpu else self._STARTS.get(self.cell, 0.0))

    def in_place(self, *arguments: Any) -> None:
        """Its kernels take contiguous tensors."""

    def converted(self, dtype: torch.dtype) -> None:
        """So gradients are not guessed."""

    def with_own_tensors(self) -> "PytorchEngine":
        weights = [None if w is None else w.detach() for w in self.weights]
        own = type(self)(self.cell, in_one_piece(self.cell, weights))
        for w, theirs in zip(own.tensors, self.tensors, strict=True):
            w.requires_grad_(theirs.requires_grad)
        return own

    def _converted(self, dtype: torch.dtype) -> "PytorchEngine":
        weights = super()._converted(dtype).weights
        return type(self)(self.cell, in_one_piece(self.cell, weights))

    def __call__(self, xs: Leaves, state: Leaves) -> tuple[list[Tensor], list[Tensor]]:
        # As our kernels, in the dtype of what is given.
        with torch.autocast(xs[0].device.type, enabled=False):
            return self._call(xs, state)

    def _call(self, xs: Leaves, state: Leaves) -> tuple[list[Tensor], list[Tensor]]:
        weights = [w for w in self.weights if w is not None]
        has_biases, first = self.weights[2] is not None, [s.unsqueeze(0) for s in state]
        options = has_biases, 1, 0.0, torch.is_grad_enabled(), False, False
        if self.cell == "lstm":
            output, *last = torch.lstm(xs[0], first, weights, *options)
        else:
            run = {"gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}
            output, *last = run[self.cell](xs[0], first[0], weights, *options)
        return [output], [s.squeeze(0) for s in last]


def _own(w: Tensor | None) -> Tensor | None:
    return None if w is None else w.detach().requires_grad_(w.requires_grad)
