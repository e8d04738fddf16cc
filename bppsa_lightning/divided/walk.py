"""One rank's span of time, walked: its results, and its share of the gradients.

T steps, B samples, S numbers of state a sample.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa_lightning._context import own_graph
from bppsa_lightning.windows import Engine
from bppsa_lightning.windows.engine import Walk as Steps

Leaves = Sequence[Tensor]
Gradients = list[Tensor | None]

# Numbers, which Python adds up in less time than PyTorch's operations take to begin.
_FEW = 256


class Walk(ABC):
    """Some steps, from a state.

    Attributes:
        ys: (T, B, ...) each, without a graph. last: the state after them, (B, ...) each.
    """

    ys: list[Tensor]
    last: list[Tensor]

    @abstractmethod
    def pull(self, grad_ys: Gradients, grad_last: Leaves) -> list[Tensor]:
        """The gradient before the span of those in it and behind it; adds up what it finds.

        Called again, for what was lacking behind the span, without `grad_ys`: a gradient that
        fades on its way is followed no further than it reaches.
        """

    @abstractmethod
    def found(self) -> tuple[Gradients, Gradients]:
        """The gradients so far: of xs, and of the engine's tensors; None where not wanted."""

    @abstractmethod
    def forget(self) -> None:
        """As if no gradient had been found."""

    def take(self) -> Gradients:
        """The tensors that a backward needs beside ys; all are then the caller's to keep.

        The caller gives them to autograd, and so whatever that does with what is saved
        (checkpoints) is done with them, too.
        """
        return []

    def give(self, tensors: Gradients, ys: Leaves) -> None:
        """What was taken, and ys."""
        assert not tensors

    def start(self, grad_ys: Gradients, grad_last: Leaves) -> list[Tensor]:
        """What `pull` would return, found without the gradients of xs and tensors.

        Raises:
            NotImplementedError: as `jacobian`.
        """
        raise NotImplementedError

    def jacobian(self) -> Tensor:
        """(B, S, S): row i is the gradient before the span of unit i of the state behind it.

        Raises:
            NotImplementedError: these steps' are not composed.
        """
        raise NotImplementedError


class NoSteps(Walk):
    """The span of a rank that holds none."""

    def __init__(self, xs: Leaves, state: Leaves, ys: Leaves, tensors: Leaves) -> None:
        self.xs, self.ys, self.last = xs, list(ys), list(state)
        self._tensors = tensors

    def pull(self, grad_ys: Gradients, grad_last: Leaves) -> list[Tensor]:
        return list(grad_last)

    start = pull

    def forget(self) -> None:
        """Nothing is ever found."""

    def found(self) -> tuple[Gradients, Gradients]:
        return [torch.zeros_like(x) for x in self.xs], [torch.zeros_like(t) for t in self._tensors]

    def jacobian(self) -> Tensor:
        B, S = len(self.last[0]), sum(math.prod(s.shape[1:]) for s in self.last)
        eye = torch.eye(S, dtype=self.last[0].dtype, device=self.last[0].device)
        return eye.expand(B, S, S)


class GraphWalk(Walk):
    """By any function of steps, through autograd.

    The last steps are a piece of their own: a gradient that comes from the rank behind, and fades,
    is followed through these alone.

    Args:
        engine: with the tensors that gradients are taken to, its own leaves.
        walk: the engine itself, or what walks for it (windows).
        tail: steps of the last piece; 0 for one piece.
        keep: whether a backward will follow.
        wanted: of each of xs, then of each of the engine's tensors.
    """

    def __init__(
        self, engine: Engine, walk: Steps, xs: Leaves, state: Leaves, tail: int, keep: bool,
        wanted: Sequence[bool],
    ) -> None:  # fmt: skip
        T = len(xs[0])
        cuts = [0, T - tail, T] if 0 < tail < T else [0, T]
        self.wants_xs, self.wants_own = list(wanted[: len(xs)]), list(wanted[len(xs) :])
        self.own = [t for t, w in zip(engine.tensors, self.wants_own, strict=True) if w]
        self.pieces = []
        for lo, hi in zip(cuts, cuts[1:], strict=False):
            piece = _Piece([x[lo:hi] for x in xs], state, self.wants_xs, walk, keep)
            self.pieces.append(piece)
            state = [s.detach() for s in piece.last]
        self.last = list(state)
        parts = zip(*(piece.ys for piece in self.pieces), strict=True)
        self.ys = [torch.cat([p.detach() for p in same]) for same in parts]
        self.of_own: Gradients = [None] * len(self.own)

    def pull(self, grad_ys: Gradients, grad_last: Leaves) -> list[Tensor]:
        left, at = list(grad_last), len(self.ys[0])
        direct = any(g is not None for g in grad_ys)
        for piece in reversed(self.pieces):
            if not direct and is_nothing(left):
                return [torch.zeros_like(g) for g in left]
            at -= piece.steps
            entering = [None if g is None else g[at : at + piece.steps] for g in grad_ys]
            left, of_own = piece.pull(entering, left, self.own)
            self.of_own = [added(a, b) for a, b in zip(self.of_own, of_own, strict=True)]
        return left

    def found(self) -> tuple[Gradients, Gradients]:
        of_xs: Gradients = []
        for i, wanted in enumerate(self.wants_xs):
            parts = [piece.of_xs(i) for piece in self.pieces]
            of_xs.append(torch.cat(parts) if wanted else None)
        own = iter(self.of_own)
        return of_xs, [next(own) if w else None for w in self.wants_own]

    def forget(self) -> None:
        self.of_own = [None] * len(self.own)
        for piece in self.pieces:
            piece.forget()


class _Piece:
    """Some of the steps, from leaf to results."""

    def __init__(
        self, xs: Leaves, state: Leaves, wants_xs: Sequence[bool], walk: Steps, keep: bool
    ) -> None:
        self.steps = len(xs[0])
        self.xs = [_leaf(x, keep and w) for x, w in zip(xs, wants_xs, strict=True)]
        self.state = [_leaf(s, keep) for s in state]
        with torch.set_grad_enabled(keep), own_graph():
            self.ys, self.last = walk(self.xs, [s.clone() for s in self.state])
        self._found: Gradients = [None] * len(xs)

    def pull(
        self, grad_ys: Gradients, grad_last: Leaves, own: Leaves
    ) -> tuple[list[Tensor], Gradients]:
        pairs = zip((*self.ys, *self.last), (*grad_ys, *grad_last), strict=True)
        results, given = zip(
            *[(r, g) for r, g in pairs if g is not None and r.requires_grad], strict=True
        )
        leaves = [x for x in self.xs if x.requires_grad]
        gradients = torch.autograd.grad(
            results, [*leaves, *self.state, *own], given, retain_graph=True, allow_unused=True
        )
        each = iter(gradients)
        self._found = [
            added(before, next(each)) if x.requires_grad else None
            for before, x in zip(self._found, self.xs, strict=True)
        ]
        left = [torch.zeros_like(s) if g is None else g for s, g in zip(self.state, each)]  # noqa: B905
        return left, list(gradients[len(leaves) + len(self.state) :])

    def forget(self) -> None:
        self._found = [None] * len(self.xs)

    def of_xs(self, i: int) -> Tensor:
        found = self._found[i]
        return torch.zeros_like(self.xs[i]) if found is None else found


def _leaf(t: Tensor, wanted: bool) -> Tensor:
    return t.detach().requires_grad_(wanted and t.is_floating_point())


def sizes_of(gradients: Tensor) -> list[float]:
    """Of (n, ...), how large each is: 0 if it is nothing, and infinite or NaN if any of it is.

    (Sums of finite numbers are finite, but for huge ones in float64, taken for infinite.)
    """
    if gradients.is_cpu and gradients.numel() <= _FEW:
        return [sum(map(abs, numbers)) for numbers in gradients.flatten(1).tolist()]
    norms = torch.linalg.vector_norm(gradients.flatten(1), 1, 1, dtype=torch.float64)
    found: list[float] = norms.tolist()
    return found


def is_nothing(gradients: Leaves) -> bool:
    """Whether all of them are zeros."""
    return not any(size for g in gradients for size in sizes_of(g[None]))


def added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The sum of two gradients, of which either may not be there."""
    return a if b is None else b if a is None else a + b
