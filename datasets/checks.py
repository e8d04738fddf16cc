"""Checks of a datamodule's arguments: an error names the argument, what it is, what was wanted."""

import os
from typing import Any

import numpy as np


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
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); wanted a str or a Path")
    return os.path.expanduser(str(value))
