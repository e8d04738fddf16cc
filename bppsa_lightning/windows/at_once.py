"""All windows of all samples in one launch: of kernels that know of windows, as those of CUDA do.

What they write is what one walk would have written, so that nothing is copied. If windows have not
met, all are walked again, each from what arrived there: windows that had met stay as they are, up
to rounding. It is as if warm-ups had been longer by a window.

T steps, B samples, K windows of C steps.
"""

from abc import abstractmethod

import torch

from bppsa_lightning.windows.cut import Cut
from bppsa_lightning.windows.in_place import States, Whole
from bppsa_lightning.windows.levels import Levels
from bppsa_lightning.windows.report import Report

# Passes over windows that have not met, before the sequence is walked: each takes as long as the
# first one, and waits for the device.
_REPAIRS = 2


class AtOnce(Whole):
    """A sequence of T steps and B samples; states of windows are (K * B, ...), window by window.

    Attributes:
        direct: whether results have gradients of their own; else only the last state has.
    """

    direct: bool

    @abstractmethod
    def walk_windows(self, cut: Cut, state: States, levels: Levels) -> tuple[States, list[bool]]:
        """Walks all windows; their results are written.

        Args:
            cut: the head is a part of the first window. One window is the walk.
            state: before the sequence, (B, ...) each; without a warm-up, before all windows.

        Returns:
            The states behind windows, and of all but the first, whether it began where the window
            before it ended.
        """

    @abstractmethod
    def pull_windows(self, cut: Cut, given: States, levels: Levels) -> tuple[States, list[bool]]:
        """The same backwards; what was found before is forgotten.

        Args:
            given: the gradients behind the sequence; where ``cut.back`` is 0, behind all windows.

        Returns:
            What left windows at their starts, and of all but the last, whether it was given what
            left the window after it.
        """

    def forward(self, state: States, cut: Cut, levels: Levels, report: Report) -> States:
        B, K = state[0].shape[0], cut.windows
        report.windows, report.warm = K, cut.warm
        begun = state
        if not cut.warm:
            begun = [torch.cat([s, s.new_zeros((K - 1) * B, *s.shape[1:])]) for s in state]
        last, met = self.walk_windows(cut, begun, levels)
        report.missed = met.count(False)
        while not all(met) and report.passes < _REPAIRS:
            report.passes += 1
            begun = [torch.cat([s, ends[:-B]]) for s, ends in zip(state, last, strict=True)]
            last, met = self.walk_windows(cut._replace(warm=0), begun, levels)
        if not all(met):
            report.walked_from = 0
            last, _ = self.walk_windows(_walk(cut), state, levels)
        return [s[-B:].clone() for s in last]

    def backward(self, given: States, cut: Cut, levels: Levels, report: Report) -> States:
        B = given[0].shape[0]
        back = max(1, min(cut.back or cut.warm, cut.span))
        if not self.direct:
            # What comes from the last state fades within windows; to guess zero would be to miss.
            back = cut.span
        left, met = self.pull_windows(cut._replace(back=back), given, levels)
        report.gradients_missed, report.backward_passes = met.count(False), 1
        while not all(met) and report.backward_passes <= _REPAIRS:
            report.backward_passes += 1
            entering = [torch.cat([s[B:], g]) for s, g in zip(left, given, strict=True)]
            left, met = self.pull_windows(cut._replace(back=0), entering, levels)
        if not all(met):
            report.backward_passes = 1 + cut.windows
            left, _ = self.pull_windows(_walk(cut), given, levels)
        return [s[:B] for s in left]


def _walk(cut: Cut) -> Cut:
    return Cut(cut.T, 1, cut.T, 0)
