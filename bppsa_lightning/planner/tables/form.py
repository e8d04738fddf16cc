"""Whether a table that a file holds has the form of one that is right: names, lists, numbers."""

from typing import Any

# Lists of any length, and dicts with any of the cells or sizes that there are.
_OPEN = frozenset({
    "hand_over", "steps", "H", "B", "samples", "least_T", "seconds", "right", "wrong", "cells",
    "ours", "stock", "bfloat16", "T", "training", "inference",
})  # fmt: skip
# What is divided by, or has its logarithm taken. Other numbers may be 0.
_POSITIVE = frozenset({
    "threads", "H", "B", "samples", "least_T", "seconds", "rate", "multiply_adds", "composing",
    "block", "resident", "T", "training", "inference",
})  # fmt: skip
# Empty where nothing was measured.
_MAY_BE_EMPTY = frozenset({"right", "wrong", "chunked", "least_T", "cells"})
_RISING = frozenset({"H", "B", "T", "samples"})
_LARGEST = 1e18  # and its inverse is the smallest: of counts, seconds, rates


def difference(found: Any, like: Any, name: str = "table") -> str | None:
    """Where a table first differs in form, in words; None if it does not.

    Args:
        found: the table, or a part of one.
        like: what has the form. Numbers in it stand for any that can have been measured.
        name: of the part.
    """
    kind = type(like) if isinstance(like, dict | list | str) else None
    if not (isinstance(found, kind) if kind else _is_number(found, name)):
        return f"{name} is {found!r:.40}"
    if kind in (None, str) or not (found or like) or (not found and name in _MAY_BE_EMPTY):
        return None
    if not found:
        return f"{name} is empty"
    return _of_dict(found, like, name) if kind is dict else _of_list(found, like, name)


def _of_dict(found: dict[str, Any], like: dict[str, Any], name: str) -> str | None:
    if name in _OPEN:
        like = dict.fromkeys(found, next(iter(like.values()), ""))
    for key, part in like.items():
        if key not in found:
            return f"{name} lacks {key!r}"
        rows = name in _OPEN and isinstance(part, list)  # of a cell: any number, as `name` says
        if why := difference(found[key], part, name if rows else key):
            return why
    return None


def _of_list(found: list[Any], like: list[Any], name: str) -> str | None:
    if len(found) != len(like) and name not in _OPEN:
        return f"{name} has {len(found)} entries, wanted {len(like)}"
    for i, part in enumerate(found):
        of = f"{name}[{i}]" if isinstance(part, dict) else name
        if why := difference(part, like[0], of):
            return why
    if name in _RISING and any(a >= b for a, b in zip(found, found[1:], strict=False)):
        return f"{name} does not rise"
    return None


def _is_number(found: Any, name: str) -> bool:
    if found is None:
        return name == "least_T"  # no number of steps pays
    if isinstance(found, bool) or not isinstance(found, int | float):
        return False
    return 1 / _LARGEST <= found <= _LARGEST or (found == 0 and name not in _POSITIVE)
