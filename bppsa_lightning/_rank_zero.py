"""Messages of a training that several processes run: one says them, as Lightning's are said.

`lightning_utilities` comes with Lightning, and is imported when there is something to say: a
program without Lightning needs none of it.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def rank_zero_info(message: str) -> None:
    """Logs a message at level INFO where Lightning logs its own, on rank zero only."""
    from lightning_utilities.core import rank_zero

    rank_zero.rank_zero_info(message)


def rank_zero_warn(message: str) -> None:
    """Warns, on rank zero only."""
    from lightning_utilities.core import rank_zero

    rank_zero.rank_zero_warn(message, stacklevel=5)


def rank_zero_only(function: Function) -> Function:
    """A function that does nothing on other ranks than zero."""

    @wraps(function)
    def on_rank_zero(*args: Any, **kwargs: Any) -> Any:
        from lightning_utilities.core.rank_zero import rank_zero_only

        return rank_zero_only(function)(*args, **kwargs)

    return on_rank_zero  # type: ignore[return-value]
