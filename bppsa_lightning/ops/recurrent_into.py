"""A recurrent layer that reads and writes where the caller has its tensors, in any strides.

Letters as in ops/recurrent.py. On a CPU, for callers who have checked the arguments; no autograd.
x, output, kept and their gradients are contiguous in their last dimension, all others contiguous.
"""

import torch
from torch import Tensor

from bppsa_lightning.ops._autograd import bit_mask, only
from bppsa_lightning.ops._recurrent_autograd import Operands
from bppsa_lightning.planner import Saved


def recurrent_room(cell: str, operands: Operands, saved: Saved) -> tuple[Tensor, Tensor]:
    """Memory for the output of a forward, (T, B, P), and for what it keeps for its backward."""
    x, _, _, w_ih, w_hh, _, _, w_hr = operands
    return torch.ops.bppsa.recurrent_room(cell, x, w_ih, w_hh, w_hr, int(saved))


def recurrent_into(
    cell: str, operands: Operands, output: Tensor | None = None, kept: Tensor | None = None
) -> list[Tensor]:
    """The last state, h (B, P) and an LSTM's c (B, H).

    Args:
        output, kept: as from `recurrent_room`, written; None if not wanted.
    """
    found = torch.ops.bppsa.recurrent_into(cell, *operands, output, kept)
    return list(found if found[1].numel() else found[:1])


def recurrent_backward_into(
    cell: str,
    operands: Operands,
    output: Tensor,
    kept: Tensor,
    grad_output: Tensor | None,
    grad_last: tuple[Tensor | None, Tensor | None],
    grad_x: Tensor | None,
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients of h0, c0, the weights and biases, as `Operands` has them: those of `wanted`.

    Args:
        grad_output: (T, B, P), or None for zeros. grad_last: of the last state.
        grad_x: (T, B, I), written; None if not wanted.
    """
    found = torch.ops.bppsa.recurrent_backward_into(
        cell, grad_output, *grad_last, output, kept, *operands, grad_x, bit_mask(wanted)
    )
    return only(wanted, found)


def kept_c(kept: Tensor, H: int) -> Tensor:
    """An LSTM's c of each step, (T, B, H), of what a forward kept: a view."""
    units = 16 // kept.element_size()  # the kernels' least vector
    padded = (H + units - 1) // units * units
    return kept.narrow(-1, kept.shape[-1] - padded, H)
