"""Messages of a training that several processes run: one says them, as Lightning's are said.

`lightning_utilities` comes with Lightning, and is imported when there is something to say: a
program without Lightning needs none of it. Where Lightning is installed and not imported, nobody
has told `lightning_utilities` of ranks, and it raises: then torch.distributed is asked.
"""

import logging
import os
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from torch import distributed as dist

Function = TypeVar("Function", bound=Callable[..., Any])


def rank_zero_info(message: str) -> None:
    """Logs a message at level INFO where Lightning logs its own, on rank zero only."""
    lightnings = _lightnings()
    if lightnings is not None:
        lightnings.rank_zero_info(message)
    elif _rank() == 0:
        logging.getLogger(__name__.partition(".")[0]).info(message)


def rank_zero_warn(message: str) -> None:
    """Warns, on rank zero only."""
    lightnings = _lightnings()
    if lightnings is not None:
        lightnings.rank_zero_warn(message, stacklevel=5)
    elif _rank() == 0:
        warnings.warn(message, stacklevel=4)


def rank_zero_only(function: Function) -> Function:
    """A function that does nothing on other ranks than zero."""

    @wraps(function)
    def on_rank_zero(*args: Any, **kwargs: Any) -> Any:
        lightnings = _lightnings()
        if lightnings is not None:
            return lightnings.rank_zero_only(function)(*args, **kwargs)
        return function(*args, **kwargs) if _rank() == 0 else None

    return on_rank_zero  # type: ignore[return-value]


def _lightnings() -> Any:
    """Lightning's own functions for this; None where Lightning is not imported."""
    try:
        from lightning_utilities.core import rank_zero
    except ModuleNotFoundError:
        return None
    return rank_zero if hasattr(rank_zero.rank_zero_only, "rank") else None


def _rank() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", 0))
