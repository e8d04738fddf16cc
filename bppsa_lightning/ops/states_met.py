"""Whether states are the same as far as rounding goes, number by number, on a CPU."""

import torch
from torch import Tensor


def states_met_is_for(state: Tensor, level: Tensor) -> bool:
    """Whether `states_met` compares states like this one, by such a level."""
    return (
        state.is_cpu and state.dtype in (torch.float32, torch.float64) and state.dim() > 1
        and level.dtype == state.dtype
    )  # fmt: skip


def states_met(guessed: Tensor, right: Tensor, level: Tensor, size: float) -> list[int]:
    """Which of n pairs of states are the same as far as rounding goes: 1 for each that is, else 0.

    What counts as rounding, and why: `bppsa_lightning.windows.levels`, which has the same in plain
    PyTorch.

    Args:
        guessed, right: (n, B, ...) each, in float32 or float64.
        level: (...): how far a walk is from the truth where states are as large as `size`.

    Raises:
        RuntimeError: shapes or dtypes do not agree, or the dtype is another.
    """
    met: list[int] = torch.ops.bppsa.states_met(guessed, right, level, size)
    return met
