"""A step as it is in the forward, for a backward that calls it again.

In `for cell in cells: bl.scan(lambda h, x: ..., ...)` the function reads the variable `cell`, which
has another value by the time of the backward. The graph of a loop would still hold the first one.
"""

import dis
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType
from typing import Any


def frozen(step: Any, done: dict[int, Any] | None = None) -> Any:
    """A copy whose variables stay bound to what they are bound to now.

    This holds for variables of enclosing functions and of the module, and for functions that they
    hold. Attributes of objects, and the contents of lists and dicts, are read when the copy is
    called (tensors in them: see places.py). What is not a Python function, or is one of torch's (a
    compiled one), is returned as it is.
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
