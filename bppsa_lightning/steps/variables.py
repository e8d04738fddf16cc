"""What a step holds in Python, where a call of it may leave something behind."""

import dis
import random
import sys
from array import array
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from operator import is_
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bppsa_lightning.steps.places import ABSENT, Place, put, value_at

_CONTAINERS = (list, dict, deque, set)
_PLAIN = (int, float, complex, str, bytes)  # as good as the one before if they are equal

# A module's attributes in which no step keeps anything: hooks.
_HOOKS = nn.Module().__dict__.keys() - {"_parameters", "_buffers"}

# Whose objects keep counts of their own, or know the whole program: what a step leaves behind is
# not looked for in them.
_OTHERS = {
    "torch", "lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics", "numpy", "wandb",
    "bppsa_lightning", "_pytest",
} | set(sys.stdlib_module_names) - {"types", "__main__"}  # fmt: skip

# Objects within objects, and containers of at most so many items, are followed so deep: an object
# counts for two.
_DEEP, _LONG = 6, 256

# Arrays of more numbers are not copied.
_MOST_NUMBERS = 1 << 20


class Variables:
    """The variables of a step as they are now.

    Seen are those of the functions that it is made in, and those of its module that it names, or
    that functions which it calls do; the attributes of modules, classes and other objects that it
    belongs to, or that such variables hold; what is in their lists, dicts, sets and arrays; and
    random number generators.

    Attributes:
        unseen: what it holds that may change without being seen, for people; None if nothing.
        parameters: of the modules among them, where gradients are wanted.
    """

    def __init__(self, step: Any) -> None:
        self.unseen: str | None = None
        self.parameters: list[Tensor] = []
        self._cells: list[tuple[CellType, Any]] = []
        # Of modules, classes and slots: how to set one, its name, and its value.
        self._names: list[tuple[Any, str, Any]] = []
        self._containers: list[tuple[Any, list[Any]]] = []  # and what is in each
        self._states: list[tuple[Callable[[], Any], Callable[[Any], Any], Any]] = []
        # Of what is made of others: its id, and those; what holds comes before what is held.
        self._parts: list[tuple[int, list[Any]]] = []
        self._named = True  # whether variables are named by the step's own functions
        self._seen: set[int] = set()
        self._classes: set[int] = set()
        self._visit(step, _DEEP)

    def restore(self, follows: Callable[[Any, Any], bool]) -> bool:
        """Undoes what a call changed; whether it left anything that the next call may read.

        Args:
            follows: whether a tensor depends on the call's arguments, or on the one in whose place
                it was put. One that does not is computed anew by each call, as pruned weights are.
        """

        def differs(old: Any, new: Any) -> bool:
            if isinstance(old, Tensor) and isinstance(new, Tensor):
                return old is not new and follows(old, new)
            same = type(old) is type(new) and isinstance(old, _PLAIN) and old == new
            return old is not new and not same

        changed = False
        for cell, old in self._cells:
            changed = changed or differs(old, cell.cell_contents)
            cell.cell_contents = old
        for owner, name, old in self._names:
            now = value_at(owner, name)
            changed = changed or differs(old, now)
            if now is not old:
                put(owner, name, old)
        for container, before in self._containers:
            now = _items(container)
            if len(before) == len(now) and all(map(is_, before, now)):
                continue
            changed = changed or len(before) != len(now) or any(map(differs, before, now))
            _fill(container, before)
        for get, set_to, state in self._states:
            if not _equal(get(), state):
                set_to(state)
                changed = True
        return changed

    def places_of(self, tensors: Iterable[Tensor]) -> list[Place]:
        """Where the step finds some tensors, and what it finds them in."""
        ways, before = {id(t) for t in tensors}, 0
        while before < len(ways):  # once more where something is held twice
            before = len(ways)
            for whole, parts in reversed(self._parts):
                if not ways.isdisjoint(map(id, parts)):
                    ways.add(whole)
        found: list[Place] = [(cell, None, value) for cell, value in self._cells]
        found += self._names
        for container, items in self._containers:
            if not isinstance(container, set) and not ways.isdisjoint(map(id, items)):
                values = items[len(container) :] if isinstance(container, dict) else items
                keys = items if isinstance(container, dict) else range(len(items))
                found += [(container, key, value) for key, value in zip(keys, values, strict=False)]
        return [place for place in found if id(place[2]) in ways]

    def _visit(self, value: Any, deep: int) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, partial):
            self._follow(value, [value.func, *value.args, *value.keywords.values()], deep)
        elif isinstance(value, MethodType):
            self._follow(value, [value.__func__, value.__self__], deep)
        elif isinstance(value, (torch.jit.ScriptFunction, torch.jit.ScriptModule)):
            self.unseen = "calls TorchScript, into which nobody looks"
        elif isinstance(value, FunctionType):
            if not _is_others(value.__module__):
                self._function(value, deep)
            elif hasattr(value, "__wrapped__"):  # one that we have made of the step
                self._follow(value, [value.__wrapped__], deep)
        elif isinstance(value, nn.Module):
            made = (p for p in value.parameters() if not is_lazy(p))
            self.parameters += [p for p in made if p.requires_grad]
            for module in value.modules():
                if any(map(_is_lazy, (*module._parameters.values(), *module._buffers.values()))):
                    self.unseen = "holds a lazy module, which its first call makes"
                else:
                    self._attributes(module, deep)
                    self._hooks_of(module, deep)
        elif isinstance(value, _CONTAINERS):
            self._container(value, deep)
        elif isinstance(value, tuple):
            if deep > 0 and len(value) <= _LONG:
                self._follow(value, list(value), deep - 1)
        elif isinstance(value, type):
            self._class(value, deep)
        elif not isinstance(value, ModuleType | Tensor):
            self._object(value, deep)

    def _follow(self, value: Any, parts: list[Any], deep: int) -> None:
        self._parts.append((id(value), parts))
        for part in parts:
            self._visit(part, deep)

    def _object(self, value: Any, deep: int) -> None:
        numpy: Any = sys.modules.get("numpy")
        if isinstance(value, random.Random):
            self._state(value.getstate, value.setstate)
        elif numpy is not None and isinstance(value, numpy.random.RandomState):
            self._state(value.get_state, value.set_state)
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            of = value.bit_generator
            self._state(lambda: of.state, lambda state: setattr(of, "state", state))
        elif numpy is not None and isinstance(value, numpy.ndarray):
            if value.flags.writeable and value.size <= _MOST_NUMBERS:
                self._state(value.copy, lambda state: numpy.copyto(value, state))
            if value.dtype == object and value.size <= _LONG and deep > 0:
                self._follow(value, value.ravel().tolist(), deep - 1)
        elif isinstance(value, array | bytearray):
            if len(value) <= _MOST_NUMBERS:
                self._state(lambda: value[:], partial(value.__setitem__, slice(None)))
        elif isinstance(value, Iterator):
            self.unseen = "holds an iterator, of which nobody sees how far it has come"
        elif not _is_others(type(value).__module__) or isinstance(value, UserDict | UserList):
            self._attributes(value, deep)

    def _state(self, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        self._states.append((get, put, get()))

    def _function(self, function: FunctionType, deep: int) -> None:
        parts: list[Any] = []
        self._parts.append((id(function), parts))
        for cell in function.__closure__ or ():
            if cell != CellType():  # an empty one
                self._cells.append((cell, cell.cell_contents))
                parts.append(cell.cell_contents)
                self._visit(cell.cell_contents, deep)
        for value in (function.__defaults__ or (), function.__kwdefaults__ or {}):
            parts.append(value)
            self._visit(value, deep)
        parts.append(function.__dict__)
        if function.__dict__:
            self._container(function.__dict__, deep)
        names, (of_module, others) = function.__globals__, _names_of(function.__code__)
        for name in of_module:
            value = names.get(name, ABSENT)
            self._names.append((names, name, value))
            parts.append(value)
            self._visit(value, deep)
            if isinstance(value, ModuleType) and not _is_others(value.__name__):
                for part in others & vars(value).keys():  # of another module of the user's
                    self._names.append((vars(value), part, vars(value)[part]))
                    self._visit(vars(value)[part], deep)

    def _attributes(self, owner: Any, deep: int) -> None:
        self._seen.add(id(owner))
        named, self._named = self._named, False
        self._class(type(owner), deep)
        parts: list[Any] = []
        self._parts.append((id(owner), parts))
        for kind in type(owner).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(owner, name) and name not in ("__dict__", "__weakref__"):
                    self._names.append((owner, name, getattr(owner, name)))
                    parts.append(getattr(owner, name))
                    self._visit(getattr(owner, name), deep)
        attributes = getattr(owner, "__dict__", None)
        if isinstance(attributes, dict):
            self._containers.append((attributes, _items(attributes)))
            for name, value in list(attributes.items()):
                parts.append(value)
                if name not in _HOOKS and deep > 0:
                    self._visit(value, deep - 2)
        self._named = named

    def _class(self, kind: type, deep: int) -> None:
        """A class's own attributes, and its methods: whichever of them the step calls."""
        named, self._named = self._named, False
        for base in kind.__mro__:
            if id(base) in self._classes or _is_others(base.__module__):
                continue
            self._classes.add(id(base))
            for name, value in list(vars(base).items()):
                method = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
                if isinstance(method, FunctionType):
                    self._visit(method, deep)
                elif isinstance(value, (*_PLAIN, *_CONTAINERS, Tensor)) and name[:2] != "__":
                    self._names.append((base, name, value))
                    self._visit(value, deep)
        self._named = named

    def _hooks_of(self, module: nn.Module, deep: int) -> None:
        of_all = torch.nn.modules.module
        own = module._forward_hooks, module._forward_pre_hooks
        for hooks in (*own, of_all._global_forward_hooks, of_all._global_forward_pre_hooks):
            for hook in hooks.values():
                self._visit(hook, deep)
        of_all_backward = of_all._global_backward_hooks or of_all._global_backward_pre_hooks
        if module._backward_hooks or module._backward_pre_hooks or of_all_backward:
            self.unseen = "calls a module with backward hooks, which see each step's gradients"

    def _container(self, container: Any, deep: int) -> None:
        items = _items(container)
        self._containers.append((container, items))
        self._parts.append((id(container), items))
        if deep > 0 and len(items) <= _LONG:
            for item in items:
                self._visit(item, deep - 1)
        elif self._named and any(isinstance(item, _CONTAINERS) for item in items):
            self.unseen = "holds more lists, dicts or sets than are looked into"


def _is_lazy(t: Tensor | None) -> bool:
    return t is not None and is_lazy(t)


def _is_others(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _OTHERS


@lru_cache(maxsize=4096)
def _names_of(code: CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """The variables of its module that a function's code names; and names of attributes."""

    def named(code: CodeType) -> Iterator[str]:
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"):
                yield instruction.argval
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from named(constant)

    return tuple(dict.fromkeys(named(code))), frozenset(code.co_names)


def _equal(a: Any, b: Any) -> bool:
    """Of states of generators, and arrays: number by number."""
    if hasattr(a, "tobytes"):
        return bool(a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _items(container: Any) -> list[Any]:
    """Of a dict, its keys and then its values."""
    return [*container, *container.values()] if isinstance(container, dict) else list(container)


def _fill(container: Any, items: list[Any]) -> None:
    """By the methods of Python's own class: those of a subclass may do more."""
    own: Any = next(
        k for k in type(container).__mro__ if k.__module__ in ("builtins", "collections")
    )
    own.clear(container)
    if isinstance(container, dict):  # (a Counter's update would count)
        keys, values = items[: len(items) // 2], items[len(items) // 2 :]
        for key, value in zip(keys, values, strict=True):
            own.__setitem__(container, key, value)
    elif isinstance(container, set):
        own.update(container, items)
    else:
        own.extend(container, items)
