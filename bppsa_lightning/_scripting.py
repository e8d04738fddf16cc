"""torch.jit.script of a model that holds an attached layer: it compiles PyTorch's own forward.

torch.jit.script reads the source of a module's `forward`, and an object on the instance has none.
Before that it calls `__prepare_scriptable__` of each module that has one. Ours takes the object
away, and the next call of the module from Python puts it back.
"""

from collections.abc import Callable
from typing import Any

from bppsa_lightning._replacement import FORWARD, SUPER_FORWARD, Replacement

_PREPARE = "__prepare_scriptable__"
_CALL = "_compiled_call_impl"  # what nn.Module.__call__ runs in place of forward and hooks


def prepare(replacement: Replacement) -> None:
    """Lets torch.jit.script compile the module of a replacement that was attached."""
    inside = replacement.module.__dict__
    inside.pop(SUPER_FORWARD, None)
    inside[_PREPARE] = StepAside(replacement)


def forget(replacement: Replacement) -> None:
    """Undoes `prepare`."""
    inside = replacement.module.__dict__
    if isinstance(inside.get(_CALL), ComeBack):
        inside.pop(SUPER_FORWARD, None)
    for key in (_PREPARE, _CALL):
        if isinstance(inside.get(key), (StepAside, ComeBack)):
            del inside[key]


class Scriptable(Replacement):
    """A replacement of `forward` that is out of the way of torch.jit.script."""

    def attach(self) -> None:
        super().attach()
        prepare(self)

    def detach(self) -> None:
        super().detach()
        forget(self)


class StepAside:
    """Takes a replacement away from a module, until its next call."""

    def __init__(self, replacement: Replacement) -> None:
        self.replacement = replacement

    def __call__(self) -> Any:
        module = self.replacement.module
        inside = module.__dict__
        if inside.get(FORWARD) is self.replacement:
            del inside[FORWARD]
            inside[SUPER_FORWARD] = self.replacement  # where it is found, and does nothing
            inside[_CALL] = ComeBack(self.replacement, inside.get(_CALL))
        return module


class ComeBack:
    """The next call of a module: with its replacement."""

    def __init__(self, replacement: Replacement, call: Callable[..., Any] | None) -> None:
        self.replacement, self.call = replacement, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.replacement.module
        del module.__dict__[_CALL]
        if self.call is not None:
            module.__dict__[_CALL] = self.call
        self.replacement.attach()
        return module(*args, **kwargs)
