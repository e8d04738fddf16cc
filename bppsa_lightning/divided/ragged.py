"""Some steps of samples of which not all have one in each: those of a packed sequence end early.

T steps of this rank, B samples, S numbers of state a sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bppsa_lightning.divided.walk import Gradients, Leaves, Walk, added

# The steps of some samples, x (T, n, I), and their states -> their walk.
StartPiece = Callable[[Tensor, Leaves], Walk]


class _Piece(NamedTuple):
    """Steps [lo, hi), which the first n samples have."""

    lo: int
    hi: int
    n: int
    walk: Walk

    def of(self, padded: Tensor) -> Tensor:
        return padded[self.lo : self.hi, : self.n]


class RaggedWalk(Walk):
    """In pieces, each of the samples that have its steps; the state of the others stands still.

    So what stands for a step that a sample has not is neither read nor walked, in both directions:
    its state waits for its first step, and after its last one.

    Args:
        start: of a piece.
        xs: x (T, B, I), in the order of the walk; and how many of the steps each sample has, (1, B)
            on the CPU, falling.
        backwards: whether a sample has the last ones, else the first ones.
        state: (B, ...) each. like: (1, ...), of one step and sample that is put out.
        wanted: gradients of x, of nothing, and of tensors of the engine.
    """

    def __init__(
        self, start: StartPiece, xs: Leaves, backwards: bool, state: Leaves, like: Tensor,
        wanted: Sequence[bool],
    ) -> None:  # fmt: skip
        x, steps = xs
        self._x_shape, self._like, self._wanted = x.shape, like, wanted
        self._state_size = sum(math.prod(s.shape[1:]) for s in state)
        T, B = x.shape[:2]
        self.last, self._pieces = list(state), []
        output = like.new_zeros(T, B, *like.shape[1:])
        for lo, hi, n in _pieces(T, steps[0].tolist(), backwards):
            walk = start(x[lo:hi, :n], [s[:n] for s in self.last])
            piece = _Piece(lo, hi, n, walk)
            piece.of(output).copy_(walk.ys[0])
            self.last = _joined(walk.last, self.last)
            self._pieces.append(piece)
        self.ys = [output]

    def take(self) -> Gradients:
        self.ys, self.last = [], []
        taken = [piece.walk.take() for piece in self._pieces]
        self._taken = [*map(len, taken)]
        return [t for of_piece in taken for t in of_piece]

    def give(self, tensors: Gradients, ys: Leaves) -> None:
        self.ys, each = list(ys), iter(tensors)
        for piece, count in zip(self._pieces, self._taken, strict=True):
            piece.walk.give([next(each) for _ in range(count)], [piece.of(ys[0])])

    def forget(self) -> None:
        for piece in self._pieces:
            piece.walk.forget()

    def pull(self, grad_ys: Gradients, grad_last: Leaves) -> list[Tensor]:
        return self._back("pull", grad_ys, grad_last)

    def start(self, grad_ys: Gradients, grad_last: Leaves) -> list[Tensor]:
        return self._back("start", grad_ys, grad_last)

    def _back(self, through: str, grad_ys: Gradients, grad_last: Leaves) -> list[Tensor]:
        [grad], left = grad_ys, list(grad_last)
        for piece in reversed(self._pieces):
            own = None if grad is None else piece.of(grad)
            behind = [g[: piece.n] for g in left]
            left = _joined(getattr(piece.walk, through)([own], behind), left)
        return left

    def jacobian(self) -> Tensor:
        eye = torch.eye(self._state_size, dtype=self._like.dtype, device=self._like.device)
        found = eye.repeat(self._x_shape[1], 1, 1)
        for piece in self._pieces:
            [found] = _joined([piece.walk.jacobian() @ found[: piece.n]], [found])
        return found

    def found(self) -> tuple[Gradients, Gradients]:
        wants_x, _, *wants_own = self._wanted
        of_x = self._like.new_zeros(self._x_shape) if wants_x else None
        total: Gradients = [None] * len(wants_own)
        for piece in self._pieces:
            [of_piece], own = piece.walk.found()
            if of_x is not None and of_piece is not None:
                piece.of(of_x).copy_(of_piece)
            total = [added(a, b) for a, b in zip(total, own, strict=True)]
        return [of_x, None], total


def _pieces(T: int, lengths: Sequence[int], backwards: bool) -> list[tuple[int, int, int]]:
    """First step, end and number of samples, in the order of the walk."""
    ends = sorted({n for n in lengths if n})
    found = [
        (lo, hi, sum(n >= hi for n in lengths))
        for lo, hi in zip([0, *ends], ends, strict=False)
    ]  # fmt: skip
    return [(T - hi, T - lo, n) for lo, hi, n in reversed(found)] if backwards else found


def _joined(first: Sequence[Tensor], all_of_them: Sequence[Tensor]) -> list[Tensor]:
    """With the first samples' replaced."""
    return [
        f if len(f) == len(a) else torch.cat([f, a[len(f) :]])
        for f, a in zip(first, all_of_them, strict=True)
    ]
