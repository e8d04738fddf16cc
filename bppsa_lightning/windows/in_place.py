"""One sample's sequence in windows that are walked where it lies: nothing is copied.

An engine whose kernels take inputs and results in any strides walks windows of one sequence as
samples of a batch, and what they put out, and keep for the backward, is what one walk would have.
So a window that did not meet is simply walked again, over the one before, and the backward takes
windows of its own, which begin with a guess too: the gradient that comes from the warm-up's steps
behind a window. (Where results are recorded by autograd, in pieces, see forward.py, backward.py.)

T steps, K windows of C steps.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from bppsa_lightning.windows.cut import Cut
from bppsa_lightning.windows.levels import Levels
from bppsa_lightning.windows.report import Report

States = list[Tensor]  # (K, ...) each
Gradients = list[Tensor | None]


class Windows(NamedTuple):
    """`n` windows of `steps` steps; `apart`, from one's first step to the next one's."""

    first: int
    n: int
    steps: int
    apart: int = 0

    def of(self, t: Tensor) -> Tensor:
        """(T, 1, ...) as (steps, n, ...), a view."""
        step = t.stride(0)
        size, stride = (self.steps, self.n, t.shape[2]), (step, self.apart * step, t.stride(2))
        return t.as_strided(size, stride, t.storage_offset() + self.first * step)


class Whole(ABC):
    """A sequence of T steps: its inputs, its results, and the gradients that were found.

    Attributes:
        results: ys, (T, B, ...) each, and what else a backward needs.
        ys: how many of them are ys.
    """

    results: list[Tensor]
    ys: int

    @abstractmethod
    def forward(self, state: States, cut: Cut, levels: Levels, report: Report) -> States:
        """Walks the sequence from a state, (B, ...) each; returns the last one."""

    @abstractmethod
    def begin_backward(self, grad_ys: Gradients, wanted: list[bool]) -> None:
        """With the direct gradients of ys; which are wanted, of xs, state and own tensors."""

    @abstractmethod
    def backward(self, given: States, cut: Cut, levels: Levels, report: Report) -> States:
        """Finds all gradients, from those behind the sequence; returns those before it."""

    @abstractmethod
    def gradients(self) -> Gradients:
        """That were found: of xs and of the engine's tensors, None where not wanted."""


class InPlace(Whole):
    """One sample's, by an engine that takes any strides."""

    @abstractmethod
    def walk_windows(
        self, cut: Cut, state: States, levels: Levels
    ) -> tuple[States, States, list[bool]]:
        """Walks all windows side by side, behind the head; their results are written.

        Args:
            state: before the sequence, (1, ...) each.

        Returns:
            The states before windows, guessed by their warm-ups from zeros, and behind them; and
            of all but the first, whether it began where the window before it ended.
        """

    @abstractmethod
    def walk(self, windows: Windows, state: States) -> States:
        """The states behind windows, from those before; their results are written."""

    @abstractmethod
    def before(self, windows: Windows) -> States:
        """The states before windows, by the results."""

    @abstractmethod
    def forget_gradients(self) -> None:
        """As if none had been found."""

    @abstractmethod
    def pull_windows(
        self, cut: Cut, given: States, levels: Levels
    ) -> tuple[States, States, list[bool]]:
        """All windows side by side, with the direct gradients; adds what it finds.

        Args:
            given: the gradients behind the sequence, (1, ...) each.

        Returns:
            What entered windows at their ends, guessed by the direct gradients of the first
            ``cut.back`` steps behind them, and what left at their starts; and of all but the last,
            whether that was what left the window after it. If all were, the head is done as well:
            what left first is then the gradient before the sequence.
        """

    @abstractmethod
    def pull(self, windows: Windows, state: States, given: States, direct: bool) -> States:
        """What the gradients behind windows become before them; adds what it finds on the way.

        Args:
            state: before the windows. given: gradients behind them.
            direct: whether those of the results enter as well, and steps are new: else they have
                gradients, and what is found is added to them.
        """

    def forward(self, state: States, cut: Cut, levels: Levels, report: Report) -> States:
        return _forward(self, state, cut, levels, report)

    def backward(self, given: States, cut: Cut, levels: Levels, report: Report) -> States:
        return _backward(self, cut, levels, given, report)


def _one(first: int, steps: int) -> Windows:
    return Windows(first, 1, steps)


def _forward(sequence: InPlace, state: States, cut: Cut, levels: Levels, report: Report) -> States:
    K, C = cut.windows, cut.span
    report.windows, report.warm = K, cut.warm
    first, last, met = sequence.walk_windows(cut, state, levels)
    waiting = [k for k, good in enumerate(met, 1) if not good]
    report.missed = len(waiting)
    while waiting:
        # In the order of time: what follows a window that was walked again may have met.
        k = waiting.pop(0)
        report.passes += 1
        before = [s[k - 1 : k].clone() for s in last]
        for s, new in zip(last, sequence.walk(_one(cut.starts[k], C), before), strict=True):
            s[k] = new[0]
        if k + 1 < K and k + 1 not in waiting:
            begun, true = [s[k + 1 : k + 2] for s in first], [s[k : k + 1] for s in last]
            [good] = levels.met([s.unsqueeze(1) for s in begun], [s.unsqueeze(1) for s in true])
            if not good:
                waiting.insert(0, k + 1)
    return [s[-1:].clone() for s in last]


def _backward(sequence: InPlace, cut: Cut, levels: Levels, given: States, report: Report) -> States:
    K, C = cut.windows, cut.span
    entered, left, met = sequence.pull_windows(cut, given, levels)
    if all(met):
        return [s[:1] for s in left]
    if not all(bool(t.isfinite().all()) for t in (*entered, *left)):
        # Overflow: which numbers are infinite, and which are none, the walk says.
        report.gradients_missed = K
        sequence.forget_gradients()
        return sequence.pull(_one(0, cut.T), sequence.before(_one(0, 1)), given, direct=True)
    report.gradients_missed = K - 1 - sum(met)
    # Gradients are linear in what enters: what a guess lacked follows by itself.
    more: States | None = None
    least = [levels.least_gradients(g) for g in left]
    state = sequence.before(Windows(cut.head, K, C, C))
    for k in range(K - 2, -1, -1):
        lacking = [b[k + 1 : k + 2] - a[k : k + 1] for a, b in zip(entered, left, strict=True)]
        if more is not None:
            lacking = [a + b for a, b in zip(lacking, more, strict=True)]
        if more is None and met[k]:
            continue
        report.backward_passes += 1
        begin = [s[k : k + 1] for s in state]
        more = sequence.pull(_one(cut.starts[k], C), begin, lacking, direct=False)
        if all(bool((m.abs() <= r[k]).all()) for m, r in zip(more, least, strict=True)):
            more = None
    at_start = [s[:1] for s in left]
    if more is not None:
        at_start = [a + b for a, b in zip(at_start, more, strict=True)]
    if cut.head:
        head = _one(0, cut.head)
        at_start = sequence.pull(head, sequence.before(head), at_start, direct=True)
    return at_start
