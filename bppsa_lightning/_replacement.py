"""What an attached module runs in place of its forward; what was not attached, and why."""

from collections.abc import Iterable
from types import CodeType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn


class NotAccelerated(NamedTuple):
    """A module that keeps PyTorch's own path, by its dotted name, and why in one line."""

    name: str
    module: nn.Module
    reason: str


FORWARD = "forward"
SUPER_FORWARD = "_super_forward"


class Replacement:
    """Replaces `forward` on the instance; class, parameters, hooks and state_dict are unchanged.

    Of a module whose class overrides forward, what `super().forward` finds may be replaced instead
    (see `_overridden`). A deep copy or a pickle of the module has a replacement of its own.

    Attributes:
        name: dotted name of the module in the one given to `attach`.
        module: the attached module.
        calls: forwards that were computed here; compiled ones are not counted.
        fallback_calls: forwards that PyTorch computed, likewise.
        reason: why PyTorch computed the last forward; None if it was computed here.
        last_fallback: the last such reason there was, or None.
        module_calls: of a module that overrides forward, its own calls; compiled ones are not
            counted.
        of_run: the number of the run that attached it, or what it is a copy of; 0 for none.
        lasts: whether it waits for the next run when it is detached: what it holds is small, or
            of use then.
    """

    lasts = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__call__" in vars(cls):  # the name in Python's error of a call by other arguments
            cls.__call__.__qualname__ = FORWARD

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module: Any = module
        self.calls = 0
        self.fallback_calls = 0
        self.reason: str | None = None
        self.last_fallback: str | None = None
        self.module_calls = 0
        self.of_run = 0

    def renew(self, name: str) -> None:
        """As one that was just made, but what compiled code knows it by."""
        self.__init__(name, self.module)  # type: ignore[misc]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} has no forward")

    @property
    def __code__(self) -> CodeType:
        """Of the forward that it replaces: torch.export names places in it."""
        code: CodeType = type(self.module).forward.__code__
        return code

    def record_call(self, reason: str | None) -> None:
        """Notes a call: computed here, or by PyTorch for a reason."""
        if torch.compiler.is_compiling():  # which would compile again for each new count
            return
        self.reason = reason
        if reason is None:
            self.calls += 1
        else:
            self.fallback_calls += 1
            self.last_fallback = reason

    def attach(self) -> None:
        """Takes the place of the module's forward."""
        self.module.__dict__[FORWARD] = self

    def detach(self) -> None:
        """Gives the module its own forward back, unless another one has taken its place since."""
        if self.module.__dict__.get(FORWARD) is self:
            del self.module.__dict__[FORWARD]


Kind = TypeVar("Kind", bound=Replacement)


class Made:
    """Makes replacements; of a module that had one before, that one, as new.

    Args:
        before: detached ones.
    """

    def __init__(self, before: Iterable[Replacement] = ()) -> None:
        self._before = {id(replacement.module): replacement for replacement in before}

    def __call__(self, kind: type[Kind], name: str, module: nn.Module) -> Kind:
        known = self._before.get(id(module))
        if known is None or type(known) is not kind or known.module is not module:
            return kind(name, module)
        known.renew(name)
        return known


def replacement_of(module: nn.Module, kind: type[Kind]) -> Kind | None:
    """The replacement of a module's forward, or of what its `super().forward` finds, of a kind.

    None if there is none: this is the one place that knows where they are.
    """
    for place in (FORWARD, SUPER_FORWARD):
        found = module.__dict__.get(place)
        if isinstance(found, kind):
            return found
    return None


def replacements(module: nn.Module, kind: type[Kind]) -> dict[str, Kind]:
    """All of a kind in a module, by the names that their modules have in it."""
    named = module.named_modules()
    return {name: r for name, child in named if (r := replacement_of(child, kind)) is not None}
