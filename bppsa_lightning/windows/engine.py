"""What walks: a function of the inputs of some steps and the state before them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bppsa_lightning.ops._autograd import Gate, gradients_with_graph
from bppsa_lightning.windows.cut import Leaves
from bppsa_lightning.windows.in_place import Whole

# xs, each (C, n, ...), and the state, each (n, ...) -> ys, each (C, n, ...), and the state after.
Walk = Callable[[Leaves, Leaves], tuple[list[Tensor], list[Tensor]]]


class Engine(ABC):
    """Walks some steps; differentiable, each sample by itself.

    Attributes:
        tensors: what it computes with beside its arguments, as far as gradients flow there.
        constants: as far as none do, and it is known.
        call: what a call costs beside its steps, in the unit of `cost`; 0 for a loop.
        calls: how many of them windows take, without a head and with one.
        rows_for_twice: the samples with which a step takes twice as long as with (almost) none.
        gain: how many times as fast as the walk windows must be estimated to be; less is noise.
        rows: samples that it walks best in multiples of so many.
        near: of the least estimated time, what is taken for as good.
        detached: of ys, and of the state, which never require a gradient; empty if any may.
        changes_state: whether it may change the state that it is given, in place.
        may_fail: whether it may raise for states that a walk of the sequence does not come to.
    """

    tensors: Sequence[Tensor] = ()
    constants: Sequence[Tensor] = ()
    detached: tuple[Sequence[bool], Sequence[bool]] = (), ()
    call: float = 0.0
    calls: tuple[float, float] = (3, 5)
    rows_for_twice: float = 1.0
    gain = 1.5
    near = 1.0
    rows = 1
    changes_state = True
    may_fail = False

    def cost(self, rows: int) -> float:
        """What a step of so many samples costs, in any unit."""
        return 1 + rows / self.rows_for_twice

    @abstractmethod
    def __call__(self, xs: Leaves, state: Leaves) -> tuple[list[Tensor], list[Tensor]]:
        """ys and the state after the last step; xs (C, n, ...), state (n, ...), C at least 1."""

    def without_gradient(self, ys: Leaves, last: Leaves) -> list[Tensor]:
        """Of ys and the last state, what autograd is to take for constant."""
        constant: list[Tensor] = []
        for leaves, detached in zip((ys, last), self.detached, strict=True):
            never = detached or [False] * len(leaves)
            constant += [
                t
                for t, is_detached in zip(leaves, never, strict=True)
                if is_detached or not (t.is_floating_point() or t.is_complex())
            ]
        return constant

    def check_walk(self, results: Leaves, unused: Sequence[Tensor]) -> None:  # noqa: B027
        """Of a walk for the backward: that it read what the forward did, as far as can be seen.

        Args:
            unused: of `tensors`, those to which no gradient came.

        Raises:
            RuntimeError: the results do not come from one of these, as those of the forward do.
        """

    def differentiable_gradients(
        self, xs: Leaves, state: Leaves, tensors: Leaves, given: Sequence[Tensor | None],
        wanted: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        """Gradients with a graph behind them, for second derivatives: by one walk.

        Args:
            xs, state: as of a call. tensors: in the place of the engine's own.
            given: the gradients of ys and of the state after the last step; None for zeros.
            wanted: of xs, state and tensors, whose gradients are.
        """
        if all(g is None for g in given):
            return (None,) * len(wanted)
        gate = Gate()
        xs, state = gate.through(xs), gate.through(state)
        ys, last = self.with_tensors(tensors)(xs, state)
        with gate.closed():
            inputs = (*xs, *state, *tensors)
            found = gradients_with_graph((*ys, *last), inputs, given, wanted)
        own = slice(len(xs) + len(state), None)
        each = zip(self.tensors, wanted[own], found[own], strict=True)
        self.check_walk((*ys, *last), [t for t, want, g in each if want and g is None])
        return found

    def in_dtype(self, dtype: torch.dtype) -> Walk:
        """The same without gradients, in float32 or float64, for arguments of that dtype."""
        raise NotImplementedError(f"a look at {type(self).__name__}, which is not for windows")

    def converted(self, dtype: torch.dtype) -> "Engine | None":
        """The same with tensors of another dtype; None where gradients are not guessed."""
        return None

    def with_own_tensors(self) -> "Engine":
        """Itself over leaves of its own, on which nobody's hooks lie; itself if it cannot."""
        return self

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Engine":
        """Itself over these in the place of its own; itself if it cannot."""
        return self

    def in_place(
        self,
        xs: Leaves,
        state: Leaves,
        tensors: Sequence[Tensor],
        kept: bool,
        results: Sequence[Tensor] | None = None,
    ) -> Whole | None:
        """A sequence that is walked where it lies; None if it must go by pieces.

        Args:
            xs: (T, B, ...) each. state: (B, ...) each. tensors: the engine's own.
            kept: whether a backward will follow.
            results: those of a forward, for a backward; None for a forward.
        """
        return None
