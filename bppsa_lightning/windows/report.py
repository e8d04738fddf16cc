"""What happened in a call in windows, and how to say it."""

from dataclasses import dataclass

from bppsa_lightning.windows.cut import Cut


@dataclass
class Report:
    """What happened in a call.

    Attributes:
        windows: K. warm: w.
        missed: windows that did not begin where the one before ended, at first.
        passes: over windows that were walked again, or whose gradients were followed further; of a
            sequence that is walked where it lies, the windows that were walked again.
        walked_from: the window from which on the rest was walked as one; None if none was.
        backward_passes: over the windows, after the first; of a sequence that is walked where it
            lies, the windows whose gradients were followed once more.
        gradients_missed: windows whose gradients were not as guessed, where guesses are made.
        silent: whether no gradient entered but near the end: a walk's backward is short then. None
            where nobody looked.
    """

    windows: int = 0
    warm: int = 0
    missed: int = 0
    passes: int = 0
    walked_from: int | None = None
    backward_passes: int = 0
    gradients_missed: int = 0
    silent: bool | None = None


def in_words(cut: Cut, report: Report | None) -> str:
    """What became of a call, for people."""
    text = f"{cut.windows} windows of {cut.span} steps, warmed up for {cut.warm}"
    if report is None:
        return text
    if report.walked_from is not None:
        text += f"; from window {report.walked_from} on they did not meet, and were walked as one"
    elif report.missed:
        text += f"; {report.missed} did not meet, and were repaired in {_count(report.passes)}"
    else:
        text += "; all met"
    if report.gradients_missed:
        text += f"; gradients of {report.gradients_missed} did not, and were followed"
    elif report.backward_passes > 1:
        text += f"; gradients were handed on in {_count(report.backward_passes)}"
    return text


def _count(passes: int) -> str:
    return f"{passes} pass{'es' * (passes != 1)}"
