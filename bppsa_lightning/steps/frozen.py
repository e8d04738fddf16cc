"""A step as it is now, for a backward that calls it again: a loop's graph would not have changed.

In `for cell in cells: bl.scan(lambda h, x: ..., ...)` the function reads the variable `cell`, which
has another value by then.
"""

import dis
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType
from typing import Any


def frozen(step: Any, done: dict[int, Any] | None = None) -> Any:
    """A function that reads what its variables are bound to now, and so do those that it calls.

    Variables of the functions that it is made in, and its module's; attributes of objects and what
    lies in lists and dicts are read as they are when it is called. What is no Python function, or
    one of torch's (a compiled one), is left as it is.
    """
    if isinstance(step, partial):
        return partial(frozen(step.func, done), *step.args, **step.keywords)
    if not isinstance(step, FunctionType) or _is_torchs(step):
        return step
    done = {} if done is None else done
    if id(step) in done:  # it calls itself
        return done[id(step)]
    code, closure = step.__code__, step.__closure__ or ()
    names = step.__globals__ if _writes_globals(code) else dict(step.__globals__)
    cells = tuple(CellType() for _ in closure)
    same = FunctionType(code, names, step.__name__, step.__defaults__, cells)
    same.__kwdefaults__, same.__qualname__ = step.__kwdefaults__, step.__qualname__
    same.__module__ = step.__module__
    same.__dict__.update(step.__dict__)
    done[id(step)] = same
    for cell, old in zip(cells, closure, strict=True):
        if old != CellType():  # an empty one
            cell.cell_contents = frozen(old.cell_contents, done)
    return same


def _is_torchs(function: FunctionType) -> bool:
    name = function.__module__ or ""
    return name.partition(".")[0] == "torch" or hasattr(function, "_torchdynamo_orig_callable")


@lru_cache(maxsize=256)
def _writes_globals(code: CodeType) -> bool:
    return any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for i in dis.get_instructions(code))
