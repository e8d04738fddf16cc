"""A recurrent layer in windows of time, walked where a sequence lies and compared.

Letters as in ops/recurrent.py; K windows of C steps each, behind a head of T - K * C. For callers
who have checked the arguments; no autograd.

On a CPU of one sample, x (T, 1, I), in strides as in `recurrent_into`. On CUDA of B samples, all in
one launch, and without a projection: the head is part of the first window; states of windows are
(K * B, ·), window by window; and where the steps of warm-up (or those that gradients are guessed
by) are 0, windows begin with what they are given: h0, c0 (or `grad_last`) are of all windows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa_lightning.ops._autograd import bit_mask, only
from bppsa_lightning.ops._recurrent_autograd import Operands

Parts = list[Tensor]  # of a state: h (K, P), and an LSTM's c (K, H)


def recurrent_windows(
    cell: str,
    operands: Operands,
    output: Tensor,
    kept: Tensor | None,
    cut: tuple[int, int, int, int],
    levels: Sequence[Tensor],
    sizes: Sequence[float],
) -> tuple[Parts, Parts, Tensor]:
    """The states that windows began with, those they ended with, and which of them have met.

    Args:
        output, kept: as from `recurrent_room`, written.
        cut: the steps of the head, K, C, and the steps of warm-up.
        levels, sizes: of h and c, as `windows.Levels` has them.

    Returns:
        And (K - 1,) int32: whether window k + 1 began where window k ended. (Of the states that
        windows began with, on CUDA those of the first are not written.)
    """
    level_h, level_c = (*levels, None)[:2]
    size_h, size_c = (*sizes, 0.0)[:2]
    *states, met = torch.ops.bppsa.recurrent_windows(
        cell, *operands, output, kept, *cut, level_h, level_c, size_h, size_c
    )
    return _parts(states[:2]), _parts(states[2:]), met


def recurrent_windows_backward(
    cell: str,
    operands: Operands,
    output: Tensor,
    kept: Tensor,
    grad_output: Tensor | None,
    grad_last: Sequence[Tensor],
    grad_x: Tensor | None,
    wanted: Sequence[bool],
    cut: tuple[int, int, int, int],
    roundings: float,
) -> tuple[Parts, Parts, list[Tensor | None], Tensor]:
    """The gradients that entered windows at their ends, those that left at their starts; those of
    the weights and biases, as `Operands` has them; and which of the first were as guessed.

    Args:
        grad_output: (T, 1, P), or None for zeros. grad_last: of the last state.
        grad_x: (T, 1, I), written; None if not wanted.
        wanted: of the weights and biases.
        cut: the steps of the head, K, C, and the steps that gradients are guessed by.
        roundings: of the gradients of a walk, as `windows.Levels` has them.

    Returns:
        Where all windows have met, the head is part of the gradients, and the first of those that
        left is that of the first state.
    """
    h, c = (*grad_last, None)[:2]
    entered_h, entered_c, left_h, left_c, *found, met = torch.ops.bppsa.recurrent_windows_backward(
        cell, grad_output, h, c, output, kept, *operands, grad_x, bit_mask((True, True, *wanted)),
        *cut, roundings,
    )  # fmt: skip
    gradients = list(only(wanted, found))
    return _parts([entered_h, entered_c]), _parts([left_h, left_c]), gradients, met


def _parts(states: Parts) -> Parts:
    h, c = states
    return [h, c] if c.numel() else [h]
