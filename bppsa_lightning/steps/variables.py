"""What a step holds in Python, where a call of it may leave something behind."""

import copy
from collections import deque
from collections.abc import Callable
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_CONTAINERS = (list, dict, deque)


class Variables:
    """The variables of a step as they are now.

    Seen are those of the functions that it is made in; the attributes of modules and other objects
    that it belongs to, or that such variables hold; and what is in their lists and dicts.
    """

    def __init__(self, step: Any) -> None:
        self._cells: list[tuple[CellType, Any]] = []
        self._containers: list[tuple[Any, Any]] = []  # and a copy of each
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
            old, new = _items(before), _items(container)
            if len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True)):
                continue
            changed = changed or len(old) != len(new) or any(map(differs, old, new))
            container.clear()
            (container.update if isinstance(container, dict) else container.extend)(before)
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
                if not any(map(is_lazy, module.parameters(recurse=False))):
                    self._attributes(module)
        elif isinstance(value, _CONTAINERS):
            self._containers.append((value, copy.copy(value)))
        elif not isinstance(value, type | ModuleType | Tensor):
            self._attributes(value)

    def _attributes(self, owner: Any) -> None:
        attributes = getattr(owner, "__dict__", None)
        if isinstance(attributes, dict):
            each = (attributes, *attributes.values())
            self._containers += [(v, copy.copy(v)) for v in each if isinstance(v, _CONTAINERS)]


def _items(container: Any) -> list[Any]:
    keys = list(container)
    return [*keys, *container.values()] if isinstance(container, dict) else keys
