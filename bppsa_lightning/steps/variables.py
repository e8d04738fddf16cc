"""What a step holds in Python, where a call of it may leave something behind."""

import dis
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from operator import is_
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_CONTAINERS = (list, dict, deque, set)

# A module's attributes in which no step keeps anything: hooks.
_HOOKS = nn.Module().__dict__.keys() - {"_parameters", "_buffers"}

# Whose objects keep counts of their own, or know the whole program: what a step leaves behind is
# not looked for in them.
_OTHERS = {
    "torch", "lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics", "numpy", "wandb",
    "bppsa_lightning", "threading", "logging", "multiprocessing", "concurrent", "asyncio",
}  # fmt: skip

# Objects within objects, and containers of at most so many items, are followed so deep.
_DEEP, _LONG = 3, 256

_ABSENT = object()


class Variables:
    """The variables of a step as they are now.

    Seen are those of the functions that it is made in, and those of its module that it names, or
    that functions which it calls do; the attributes of modules and other objects that it belongs
    to, or that such variables hold; and what is in their lists, dicts and sets.
    """

    def __init__(self, step: Any) -> None:
        self._cells: list[tuple[CellType, Any]] = []
        self._names: list[tuple[dict[str, Any], str, Any]] = []  # of modules
        self._containers: list[tuple[Any, list[Any]]] = []  # and what is in each
        self._seen: set[int] = set()
        self._visit(step, _DEEP)

    def restore(self, depends: Callable[[Any], bool]) -> bool:
        """Undoes what a call changed; whether it left anything that the next call may read.

        Args:
            depends: whether a tensor depends on the call's arguments. One that does not and was
                put in another's place is computed anew by each call, as pruned weights are.
        """

        def differs(old: Any, new: Any) -> bool:
            again = isinstance(old, Tensor) and isinstance(new, Tensor) and not depends(new)
            return old is not new and not again

        changed = False
        for cell, old in self._cells:
            changed = changed or differs(old, cell.cell_contents)
            cell.cell_contents = old
        for names, name, old in self._names:
            now = names.get(name, _ABSENT)
            changed = changed or differs(old, now)
            if old is _ABSENT:
                names.pop(name, None)
            elif now is not old:
                names[name] = old
        for container, before in self._containers:
            now = _items(container)
            if len(before) == len(now) and all(map(is_, before, now)):
                continue
            changed = changed or len(before) != len(now) or any(map(differs, before, now))
            _fill(container, before)
        return changed

    def _visit(self, value: Any, deep: int) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._visit(part, deep)
        elif isinstance(value, MethodType):
            self._visit(value.__self__, deep)
            self._visit(value.__func__, deep)
        elif isinstance(value, FunctionType):
            if not _is_others(value.__module__):
                self._function(value, deep)
        elif isinstance(value, nn.Module):
            for module in value.modules():
                if not any(p is not None and is_lazy(p) for p in module._parameters.values()):
                    self._attributes(module, deep)
        elif isinstance(value, _CONTAINERS):
            self._container(value, deep)
        elif not isinstance(value, type | ModuleType | Tensor) and not _is_others(
            type(value).__module__
        ):
            self._attributes(value, deep)

    def _function(self, function: FunctionType, deep: int) -> None:
        for cell in function.__closure__ or ():
            if cell != CellType():  # an empty one
                self._cells.append((cell, cell.cell_contents))
                self._visit(cell.cell_contents, deep)
        names = function.__globals__
        for name in _names_of(function.__code__):
            value = names.get(name, _ABSENT)
            self._names.append((names, name, value))
            if value is not _ABSENT:
                self._visit(value, deep)

    def _attributes(self, owner: Any, deep: int) -> None:
        attributes = getattr(owner, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        self._containers.append((attributes, _items(attributes)))
        self._seen.add(id(owner))
        for kind in type(owner).__mro__:  # whichever of its methods the step calls
            if not _is_others(kind.__module__):
                for method in vars(kind).values():
                    if isinstance(method, FunctionType):
                        self._visit(method, deep)
        for name, value in list(attributes.items()):
            if name not in _HOOKS and deep > 0:
                self._visit(value, deep - 1)

    def _container(self, container: Any, deep: int) -> None:
        items = _items(container)
        self._containers.append((container, items))
        if deep > 0 and len(items) <= _LONG:
            for item in items:
                self._visit(item, deep - 1)


def _is_others(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _OTHERS


@lru_cache(maxsize=4096)
def _names_of(code: CodeType) -> tuple[str, ...]:
    """The variables of its module that a function's code names."""

    def named(code: CodeType) -> Iterator[str]:
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"):
                yield instruction.argval
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from named(constant)

    return tuple(dict.fromkeys(named(code)))


def _items(container: Any) -> list[Any]:
    """Of a dict, its keys and then its values."""
    return [*container, *container.values()] if isinstance(container, dict) else list(container)


def _fill(container: Any, items: list[Any]) -> None:
    container.clear()
    if isinstance(container, dict):
        keys, values = items[: len(items) // 2], items[len(items) // 2 :]
        container.update(zip(keys, values, strict=True))
    elif isinstance(container, set):
        container.update(items)
    else:
        container.extend(items)
