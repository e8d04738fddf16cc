"""One rank's span of a recurrent layer, walked by our kernels.

T steps, B samples, I input, P state that is put out, S numbers of state.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa_lightning import ops, planner
from bppsa_lightning._cells import CELLS
from bppsa_lightning.divided import Gradients, Leaves, Walk, added, is_nothing
from bppsa_lightning.ops import Operands
from bppsa_lightning.recurrent.in_place import KernelsInPlace
from bppsa_lightning.windows import Cut, Levels, Report
from bppsa_lightning.windows.in_place import Windows


class KernelWalk(Walk):
    """x (T, B, I) from a state h (B, P) and an LSTM's c (B, H), as one walk.

    Args:
        weights: w_ih, w_hh, b_ih, b_hh (or None), w_hr (or None).
        tail: steps through which what comes from behind is followed first; 0 for all.
        keep: whether a backward will follow.
        wanted: of x, then of each weight that there is.
        rows: of the whole sequence, all ranks' steps times samples: how much is kept depends on
            that, so that a rank keeps its share of what one process would.
    """

    def __init__(
        self, cell: str, weights: Sequence[Tensor | None], xs: Leaves, state: Leaves, tail: int,
        keep: bool, wanted: Sequence[bool], rows: int = 0,
    ) -> None:  # fmt: skip
        self.cell, [x] = CELLS[cell], xs
        h0, c0 = (*[s.contiguous() for s in state], None)[:2]
        x = x if x.stride(-1) == 1 else x.contiguous()
        own = [None if w is None else w.detach().contiguous() for w in weights]
        self.operands = Operands(x, h0, c0, *own)  # type: ignore[arg-type]
        saved = planner.Saved.NOTHING
        if keep:
            request = ops.request_of(cell, self.operands, "linear")
            steps = max(rows // max(1, request.B), request.T)
            saved = planner.saved(request._replace(T=steps))
        output, h_n, c_n, self.kept = ops.run_forward(
            cell, *self.operands, False, int(saved), "linear"
        )
        self.ys, self.last = [output], [h_n, c_n] if self.cell.has_c else [h_n]
        T = len(x)
        # (A GPU keeps no state that a part of the steps could begin with.)
        self._cuts = [0, T] if x.is_cuda else _cuts(T, tail)
        each = iter(wanted[1:])
        self._wanted = wanted[0], *(w is not None and next(each) for w in own)
        self.forget()

    def take(self) -> Gradients:
        (x, h0, c0, *_), kept = self.operands, self.kept
        self.ys, self.last = [], []
        self.operands = self.operands._replace(x=x[:0], h0=None, c0=None)
        del self.kept
        return [x, h0, c0, kept]

    def give(self, tensors: Gradients, ys: Leaves) -> None:
        x, h0, c0, kept = tensors
        assert x is not None and kept is not None
        self.operands = self.operands._replace(x=x, h0=h0, c0=c0)
        self.ys, self.kept = [y.contiguous() for y in ys], kept

    def forget(self) -> None:
        self._grad_x: Tensor | None = None
        self._found: Gradients = [None] * 5

    def found(self) -> tuple[Gradients, Gradients]:
        grad_x = self._grad_x
        if grad_x is None and self._wanted[0]:
            grad_x = torch.zeros_like(self.operands.x)
        weights = self.operands[3:]
        return [grad_x], [g for g, w in zip(self._found, weights, strict=True) if w is not None]

    def pull(self, grad_ys: Gradients, grad_last: Leaves) -> list[Tensor]:
        [grad] = grad_ys
        if grad is not None:
            return self._pull(0, self._cuts[-1], grad, grad_last)
        left = list(grad_last)
        for lo, hi in zip(self._cuts[-2::-1], self._cuts[:0:-1], strict=True):
            if hi < self._cuts[-1] and is_nothing(left):
                break
            left = self._pull(lo, hi, None, left)
        return left

    def _pull(self, lo: int, hi: int, grad: Tensor | None, behind: Leaves) -> list[Tensor]:
        """Steps [lo, hi): what is before them of what is behind; adds what is found."""
        at_start, grad_x, found = self._backward(lo, hi, grad, behind, self._wanted)
        if grad_x is not None:
            if self._grad_x is None and hi - lo == len(self.operands.x):
                self._grad_x = grad_x
            else:
                if self._grad_x is None:
                    self._grad_x = torch.zeros_like(self.operands.x)
                self._grad_x[lo:hi].add_(grad_x)
        self._found = [added(a, b) for a, b in zip(self._found, found, strict=True)]
        return at_start

    def start(self, grad_ys: Gradients, grad_last: Leaves) -> list[Tensor]:
        nothing = (False,) * len(self._wanted)
        return self._backward(0, self._cuts[-1], grad_ys[0], grad_last, nothing)[0]

    def jacobian(self) -> Tensor:
        return ops.recurrent_jacobian(self.cell.name, self.operands, self.ys[0], self.kept)

    def _backward(
        self, lo: int, hi: int, grad: Tensor | None, behind: Leaves, wanted: Sequence[bool]
    ) -> tuple[list[Tensor], Tensor | None, Gradients]:
        """The state's gradient before steps [lo, hi); those of x and weights."""
        x, h0, c0, *_ = self.operands
        output, H = self.ys[0], self.operands.w_hh.shape[0] // self.cell.gates
        if lo:
            h0 = output[lo - 1]
            c0 = ops.kept_c(self.kept, H)[lo - 1].contiguous() if self.cell.has_c else None
        if grad is not None and grad.stride(-1) != 1:
            grad = grad.contiguous()
        h, c = (*[g.contiguous() for g in behind], None)[:2]
        operands = self.operands._replace(x=x[lo:hi], h0=h0, c0=c0)
        wanted = wanted[0], True, self.cell.has_c, *wanted[1:]
        grad_x, at_h, at_c, *found = ops.run_backward(
            self.cell.name, grad, h, c, output[lo:hi], self.kept[lo:hi], operands, wanted
        )
        at_start = [g for g in (at_h, at_c) if g is not None]
        return at_start, grad_x, found


class WindowsWalk(Walk):
    """One sample's span in windows of its own, walked where it lies, on a CPU.

    Args:
        sequence: its kernels. cut, levels, report: of its windows.
    """

    def __init__(
        self, sequence: KernelsInPlace, state: Leaves, cut: Cut, levels: Levels, tail: int,
        wanted: Sequence[bool],
    ) -> None:  # fmt: skip
        self._sequence, self._cut, self._levels = sequence, cut, levels
        self.last = sequence.forward(list(state), cut, levels, Report())
        self.ys = sequence.results[: sequence.ys]
        self._states, self._wanted = [True] * len(state), wanted
        self._cuts = _cuts(cut.T, tail)
        self._begun = False

    def take(self) -> Gradients:
        self.ys, self.last = [], []
        return self._sequence.take()

    def give(self, tensors: Gradients, ys: Leaves) -> None:
        self._sequence.give(tensors, ys[0])
        self.ys = list(ys)

    def forget(self) -> None:
        self._begun = False

    def found(self) -> tuple[Gradients, Gradients]:
        of_x, *own = self._sequence.gradients()
        return [of_x], own

    def pull(self, grad_ys: Gradients, grad_last: Leaves) -> list[Tensor]:
        sequence = self._sequence
        if not self._begun:
            self._begun = True
            sequence.begin_backward(
                list(grad_ys), [self._wanted[0], *self._states, *self._wanted[1:]]
            )
            given = [g.contiguous() for g in grad_last]
            return sequence.backward(given, self._cut, self._levels, Report())
        left = list(grad_last)
        for lo, hi in zip(self._cuts[-2::-1], self._cuts[:0:-1], strict=True):
            if hi < self._cuts[-1] and is_nothing(left):
                break
            part = Windows(lo, 1, hi - lo)
            left = sequence.pull(part, sequence.before(part), left, direct=False)
        return left


def _cuts(T: int, tail: int) -> list[int]:
    """Where what comes from behind is looked at: after so many steps, twice as many more, …"""
    cuts, steps = [T], tail
    while 0 < steps < cuts[-1]:
        cuts.append(cuts[-1] - steps)
        steps *= 2
    return [0, *reversed(cuts)]
