"""What a step holds in Python, where a call of it may leave something behind."""

from collections import deque
from collections.abc import Callable
from functools import partial
from operator import is_
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_CONTAINERS = (list, dict, deque)

# A module's attributes in which no step keeps anything: hooks.
_HOOKS = nn.Module().__dict__.keys() - {"_parameters", "_buffers"}


class Variables:
    """The variables of a step as they are now.

    Seen are those of the functions that it is made in; the attributes of modules and other objects
    that it belongs to, or that such variables hold; and what is in their lists and dicts.
    """

    def __init__(self, step: Any) -> None:
        self._cells: list[tuple[CellType, Any]] = []
        self._containers: list[tuple[Any, list[Any]]] = []  # and what is in each
        self._seen: set[int] = set()
        self._visit(step)

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
        for container, before in self._containers:
            now = _items(container)
            if len(before) == len(now) and all(map(is_, before, now)):
                continue
            changed = changed or len(before) != len(now) or any(map(differs, before, now))
            _fill(container, before)
        return changed

    def _visit(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._visit(part)
        elif isinstance(value, MethodType):
            self._visit(value.__self__)
            self._visit(value.__func__)
        elif isinstance(value, FunctionType):
            for cell in value.__closure__ or ():
                if cell != CellType():  # an empty one
                    self._cells.append((cell, cell.cell_contents))
                    self._visit(cell.cell_contents)
        elif isinstance(value, nn.Module):
            for module in value.modules():
                if not any(p is not None and is_lazy(p) for p in module._parameters.values()):
                    self._attributes(module)
        elif isinstance(value, _CONTAINERS):
            self._containers.append((value, _items(value)))
        elif not isinstance(value, type | ModuleType | Tensor):
            self._attributes(value)

    def _attributes(self, owner: Any) -> None:
        attributes = getattr(owner, "__dict__", None)
        if isinstance(attributes, dict):
            self._containers.append((attributes, _items(attributes)))
            for name, value in attributes.items():
                if isinstance(value, _CONTAINERS) and name not in _HOOKS:
                    self._containers.append((value, _items(value)))


def _items(container: Any) -> list[Any]:
    """Of a dict, its keys and then its values."""
    return [*container, *container.values()] if isinstance(container, dict) else list(container)


def _fill(container: Any, items: list[Any]) -> None:
    container.clear()
    if isinstance(container, dict):
        keys, values = items[: len(items) // 2], items[len(items) // 2 :]
        container.update(zip(keys, values, strict=True))
    else:
        container.extend(items)
