"""Warnings that say what to do, each once for each module."""

from weakref import WeakKeyDictionary

from torch import nn

from bppsa_lightning._rank_zero import rank_zero_warn

_GIVEN: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def advise(module: nn.Module, about: str, text: str) -> None:
    """Warns on rank zero, unless this module has been warned about this before.

    Args:
        module: what the text is about.
        about: the kind of warning, a heading of docs/troubleshooting.md.
        text: what happened, what it means, what to do.
    """
    given = _GIVEN.setdefault(module, set())
    if about in given:
        return
    given.add(about)
    rank_zero_warn(f"{text} See docs/troubleshooting.md#{about}")
