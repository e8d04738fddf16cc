"""Checks of a datamodule's arguments: an error names the argument, what it is, what was wanted."""

import os
from typing import Any

import numpy as np
import torch


def check_int(name: str, value: Any, low: int, high: int | None = None) -> int:
    wanted = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); wanted {wanted}")
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name} is {value}; wanted {wanted}")
    return int(value)


def check_float(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); wanted a number")
    return float(value)


def check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); wanted True or False")
    return value


def check_folder(name: str, value: Any) -> str:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); wanted a str or a Path")
    return os.path.expanduser(str(path))  # of numpy's str, too, a plain one


def check_share(name: str, value: Any) -> float:
    share = check_float(name, value)
    if not 0 <= share < 1:
        raise ValueError(f"{name} is {share}; wanted at least 0 and below 1")
    return share


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; wanted one of {', '.join(map(repr, choices))}")
    return value


def check_device(name: str, value: Any) -> str:
    try:
        return str(torch.device(value))
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name} is {value!r}; wanted a torch device such as 'cuda'") from error
