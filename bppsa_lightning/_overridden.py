"""Subclasses that override forward: a replacement for what their `super().forward` finds.

While such a module is attached, its class is one of the same name, made of the user's class and of
one whose forward is the replacement. The latter comes right before torch's class in the method
resolution order, so that each `super().forward(...)` of the user's classes ends there.
"""

import dis
import inspect
from abc import ABCMeta
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from bppsa_lightning._replacement import SUPER_FORWARD, Replacement

_DETACHED = "_detached_class"


class _Quiet:
    """Keeps a class that we make from the user's hook, which may count or register what it sees."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    replacement = self.__dict__.get(SUPER_FORWARD)
    if replacement is not None and not torch.compiler.is_compiling():
        replacement.module_calls += 1
    return _detached_of(type(self)).__call__(self, *args, **kwargs)


def _reduce_ex(self: nn.Module, protocol: Any) -> Any:
    """As the user's class, which can be imported, and attached again by what unpickles it."""
    kind, detached = type(self), _detached_of(type(self))
    reduced = detached.__reduce_ex__(self, protocol)
    if isinstance(reduced, str) or not _is_ours(kind):
        return reduced
    function, arguments, *state = reduced
    plain = [detached if a is kind else a for a in (function, *arguments)]
    return (_rebuild, (_base_of(kind), *plain), *state)


def _rebuild(base: type[nn.Module], function: Callable[..., nn.Module], *arguments: Any) -> Any:
    module = function(*arguments)
    object.__setattr__(module, "__class__", _attached(type(module), base))
    return module


def attach(replacement: Replacement, base: type[nn.Module]) -> None:
    """Puts a replacement in the place of `base.forward` for its module, which overrides that."""
    module = replacement.module
    if not hasattr(type(module), _DETACHED):
        kind = type(module)
        # What parametrize puts on top must stay there: it changes the class that it finds.
        wrapped = is_parametrized(module) and kind.__name__.startswith("Parametrized")
        if wrapped:
            below = _attached(kind.__bases__[0], base)
            new = _make(kind, (below,), {**_namespace(kind), "_parametrized": kind})
        else:
            new = _attached(kind, base)
        object.__setattr__(module, "__class__", new)
    module.__dict__[SUPER_FORWARD] = replacement


def detach(replacement: Replacement) -> None:
    """Gives the module its class back.

    If others have extended the class since, as FSDP does, theirs stays, and torch's forward runs.
    """
    module = replacement.module
    if module.__dict__.get(SUPER_FORWARD) is not replacement:
        return
    del module.__dict__[SUPER_FORWARD]
    kind = type(module)
    if _is_ours(kind):
        object.__setattr__(module, "__class__", _detached_of(kind))
    elif is_parametrized(module) and _is_ours(kind.__bases__[0]):
        object.__setattr__(module, "__class__", _detached_parametrized(kind))


def unsupported(kind: type[nn.Module], base: type[nn.Module]) -> str | None:
    """Why `super().forward` of a class cannot be replaced; None if it can."""
    for owner in kind.__mro__[: kind.__mro__.index(base)]:
        forward = inspect.unwrap(vars(owner).get("forward", owner))
        if _calls_super_of_type(getattr(forward, "__code__", None)):
            return "its forward calls super(type(self), self), which no subclass of it can run"
    if _hears_of_subclasses(kind, base) and not _laid_out_as_module(kind):
        return "its class has an __init_subclass__, and a first base that is no nn.Module"
    return None


def _calls_super_of_type(code: CodeType | None) -> bool:
    """Whether code calls super(type(self), self), or super(self.__class__, self)."""
    steps = (
        [] if code is None else [i for i in dis.get_instructions(code) if i.opname != "PUSH_NULL"]
    )
    return any(
        first.argval == "super"
        and first.opname == "LOAD_GLOBAL"
        and (second.argval == "type" or (third.opname, third.argval) == ("LOAD_ATTR", "__class__"))
        for first, second, third in zip(steps, steps[1:], steps[2:], strict=False)
    )


def _hears_of_subclasses(kind: type, base: type) -> bool:
    return any("__init_subclass__" in vars(c) for c in kind.__mro__[: kind.__mro__.index(base)])


def _laid_out_as_module(kind: type) -> bool:
    while kind not in (nn.Module, object):
        kind = kind.__base__  # type: ignore[assignment]
    return kind is nn.Module


def place_of(kind: type[nn.Module]) -> str:
    """The forward that a class runs, for people: its name, and where it is defined."""
    forward = inspect.unwrap(kind.forward)
    code = getattr(forward, "__code__", None)
    name = getattr(forward, "__qualname__", f"{kind.__qualname__}.forward")
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _attached(kind: type[nn.Module], base: Any) -> type[nn.Module]:
    """The class that stands for the user's, one for all its instances."""
    for known in type.__subclasses__(kind):
        if vars(known).get(_DETACHED) is kind:
            return known
    names = ("__module__", "__qualname__", "__doc__")
    namespace = {name: getattr(kind, name) for name in names}
    namespace |= {_DETACHED: kind, "__call__": _call, "__reduce_ex__": _reduce_ex}
    first = (_Quiet,) if _hears_of_subclasses(kind, base) else ()
    new: type[nn.Module] = _make(kind, (*first, kind, _last(base)), namespace)
    return new


def _is_ours(kind: type) -> bool:
    return _DETACHED in vars(kind)


def _detached_of(kind: type) -> Any:
    """The user's class, of one that stands for it or extends that."""
    return getattr(kind, _DETACHED)


def _base_of(kind: type[nn.Module]) -> type[nn.Module]:
    return kind.__bases__[-1].__bases__[0]


@cache
def _last(base: Any) -> type[nn.Module]:
    """A subclass of one of torch's classes whose forward is the replacement."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        replacement = self.__dict__.get(SUPER_FORWARD)
        if replacement is None or replacement.module is not self:  # detached; a shallow copy
            return base.forward(self, *args, **kwargs)
        return replacement(*args, **kwargs)

    from torch._dynamo.eval_frame import skip_code  # late: it takes a second to import

    skip_code(forward.__code__)  # inside of a graph, or not compiled: see recurrent/graphs.py
    return type(base.__name__, (base,), {"__module__": __name__, "forward": forward})


def _make(kind: type, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
    """A class like another one, of which no code of the user's metaclass hears."""
    builder = ABCMeta if isinstance(kind, ABCMeta) else type
    return builder.__new__(type(kind), kind.__name__, bases, namespace)


def _namespace(kind: type) -> dict[str, Any]:
    own = vars(kind).items()
    return {k: v for k, v in own if k not in ("__dict__", "__weakref__", "_parametrized")}


def _detached_parametrized(kind: Any) -> type[nn.Module]:
    """What parametrize made of the user's class, or would have made by now."""
    namespace, before = _namespace(kind), vars(kind).get("_parametrized")
    if before is not None and _namespace(before).keys() == namespace.keys():
        return before  # type: ignore[no-any-return]
    return _make(kind, (_detached_of(kind),), namespace)  # type: ignore[no-any-return]
