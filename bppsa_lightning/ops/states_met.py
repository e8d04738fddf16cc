"""Whether states are the same as far as rounding goes, number by number, on a CPU."""

import torch
from torch import Tensor


def states_met_is_for(state: Tensor, level: Tensor) -> bool:
    """Whether `states_met` compares states like this one, by such a level."""
    return (
        state.is_cpu and state.dtype in (torch.float32, torch.float64) and state.dim() > 1
        and level.dtype == state.dtype
    )  # fmt: skip


def states_met(guessed: Tensor, true: Tensor, level: Tensor, size: float) -> list[int]:
    """Of n pairs of states, whether they have met: 0 or 1. What that is: windows/levels.py.

    Args:
        guessed, true: (n, B, ...) each, in float32 or float64.
        level: (...): how far a walk is from the truth where states are as large as `size`.

    Raises:
        RuntimeError: names the argument of another shape or dtype.
    """
    met: list[int] = torch.ops.bppsa.states_met(guessed, true, level, size)
    return met
