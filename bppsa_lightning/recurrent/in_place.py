"""Sequences through our kernels in windows that are walked where they lie, on a CPU and on CUDA.

T steps, B samples, K windows, I input, H hidden, P state that is put out.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa_lightning import ops, planner
from bppsa_lightning._cells import CELLS
from bppsa_lightning.windows.at_once import AtOnce
from bppsa_lightning.windows.cut import Cut, Leaves
from bppsa_lightning.windows.in_place import Gradients, InPlace, States, Whole, Windows
from bppsa_lightning.windows.levels import Levels


class _Kernels(Whole):
    """x (T, B, I) from a state h (B, P) and an LSTM's c (B, H).

    Args:
        weights: w_ih, w_hh, b_ih, b_hh (or None), w_hr (or None).
        kept: whether a backward will follow.
        results: output and what was kept of a forward, for its backward.
    """

    ys = 1

    def __init__(
        self,
        cell: str,
        x: Tensor,
        state: Leaves,
        weights: Sequence[Tensor | None],
        kept: bool,
        results: Sequence[Tensor] | None,
    ) -> None:
        self.cell, self.state = CELLS[cell], [_contiguous(s) for s in state]
        self.x = x if x.stride(-1) == 1 else x.contiguous()
        self.weights = [None if w is None else _contiguous(w) for w in weights]
        if results is None:
            operands = ops.Operands(self.x, None, None, *self.weights)  # type: ignore[arg-type]
            saved = planner.Saved.NOTHING
            if kept:
                saved = planner.saved(ops.request_of(cell, operands, "linear"))
            results = ops.recurrent_room(cell, operands, saved)
        self.results = list(results)
        self.output, self.kept = results

    def begin_backward(self, grad_ys: Gradients, wanted: list[bool]) -> None:
        [grad] = grad_ys
        self.grad = None if grad is None else grad if grad.stride(-1) == 1 else grad.contiguous()
        self.direct = grad is not None
        wants_x, *rest = wanted
        each = iter(rest[len(self.state) :])
        self.wanted = tuple(w is not None and next(each) for w in self.weights)
        self.grad_x = self.x.new_empty(self.x.shape) if wants_x else None
        self.found: list[Tensor | None] = [None] * len(self.weights)

    def take(self) -> Gradients:
        """What a backward needs beside the output, for the caller to keep."""
        taken: Gradients = [self.x, *self.state, self.kept]
        nothing = self.x[:0]
        self.x = self.output = self.kept = nothing
        self.state, self.results = [], []
        return taken

    def give(self, tensors: Gradients, output: Tensor) -> None:
        """What was taken, and the output."""
        x, *state, kept = [t for t in tensors if t is not None]
        self.x, self.state, self.output, self.kept = x, state, output, kept
        self.results = [output, kept]

    def gradients(self) -> Gradients:
        return [self.grad_x] + [
            g for g, w in zip(self.found, self.weights, strict=True) if w is not None
        ]

    def _operands(self, windows: Windows | None, state: Leaves) -> ops.Operands:
        """Of the whole sequence without windows."""
        h, c = (*state, None)[:2]
        x = self.x if windows is None else windows.of(self.x)
        return ops.Operands(x, h, c, *self.weights)  # type: ignore[arg-type]


class KernelsAtOnce(_Kernels, AtOnce):
    """The kernels of CUDA, of any number of samples."""

    def walk_windows(self, cut: Cut, state: States, levels: Levels) -> tuple[States, list[bool]]:
        _, last, met = ops.recurrent_windows(
            self.cell.name, self._operands(None, state), self.output, self.kept,
            (cut.head, *cut[1:4]), levels.rounding, levels.sizes,
        )  # fmt: skip
        return last, _answers(met)

    def pull_windows(self, cut: Cut, given: States, levels: Levels) -> tuple[States, list[bool]]:
        _, left, self.found, met = ops.recurrent_windows_backward(
            self.cell.name, self._operands(None, self.state), self.output, self.kept, self.grad,
            given, self.grad_x, self.wanted, (cut.head, *cut[1:3], cut.back), levels.gradients,
        )  # fmt: skip
        return left, _answers(met)


def _answers(met: Tensor) -> list[bool]:
    return [bool(good) for good in met.tolist()] if len(met) else []


class KernelsInPlace(_Kernels, InPlace):
    """The kernels of a CPU, of one sample."""

    def walk_windows(
        self, cut: Cut, state: States, levels: Levels
    ) -> tuple[States, States, list[bool]]:
        operands = self._operands(None, state)
        first, last, met = ops.recurrent_windows(
            self.cell.name, operands, self.output, self.kept, (cut.head, *cut[1:4]),
            levels.rounding, levels.sizes,
        )  # fmt: skip
        return first, last, met.tolist()

    def walk(self, windows: Windows, state: States) -> States:
        into = windows.of(self.output), windows.of(self.kept)
        return ops.recurrent_into(self.cell.name, self._operands(windows, state), *into)

    def before(self, windows: Windows) -> States:
        first, count, _, apart = windows
        skip = int(first == 0)  # the first state was put out by no step
        ends = Windows(first + skip * apart - 1, count - skip, 1, apart)
        parts = [self.output]
        if self.cell.has_c:
            parts.append(ops.kept_c(self.kept, self.state[1].shape[1]))
        found = []
        for part, state in zip(parts, self.state, strict=True):
            rows = ends.of(part)[0] if count > skip else state[:0]
            found.append(torch.cat([state, rows]) if skip else rows.contiguous())
        return found

    def forget_gradients(self) -> None:
        self.found = [None] * len(self.weights)

    def pull(self, windows: Windows, state: States, given: States, direct: bool) -> States:
        grad_x = self.grad_x
        if grad_x is not None:
            here = windows.of(grad_x)
            grad_x = here if direct else torch.empty_like(here)
        at_start, found = self._backward(windows, state, given, direct, grad_x)
        if grad_x is not None and not direct:
            here += grad_x
        for i, g in enumerate(found):
            if g is not None:
                before = self.found[i]
                self.found[i] = g if before is None else before.add_(g)
        return at_start

    def pull_windows(
        self, cut: Cut, given: States, levels: Levels
    ) -> tuple[States, States, list[bool]]:
        parts = cut.head, cut.windows, cut.span, max(1, min(cut.back or cut.warm, cut.span))
        entered, left, found, met = ops.recurrent_windows_backward(
            self.cell.name, self._operands(None, self.state), self.output, self.kept, self.grad,
            given, self.grad_x, self.wanted, parts, levels.gradients,
        )  # fmt: skip
        self.found = found
        return entered, left, met.tolist()

    def _backward(
        self,
        windows: Windows,
        state: States,
        given: States,
        direct: bool,
        grad_x: Tensor | None,
    ) -> tuple[States, Sequence[Tensor | None]]:
        two = self.cell.has_c
        h, c = (*given, None)[:2]
        grad = windows.of(self.grad) if direct and self.grad is not None else None
        at_h, at_c, *found = ops.recurrent_backward_into(
            self.cell.name, self._operands(windows, state), windows.of(self.output),
            windows.of(self.kept), grad, (h, c), grad_x, (True, two, *self.wanted),
        )  # fmt: skip
        assert at_h is not None
        return [at_h, at_c] if at_c is not None else [at_h], found


def _contiguous(t: Tensor) -> Tensor:
    return t if t.is_contiguous() else t.contiguous()
