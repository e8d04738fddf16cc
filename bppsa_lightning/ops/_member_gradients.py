"""Gradients of weights for each member of a batch: one batched product over time for all members.

V members of B samples each, which share the weights; V * B is the batch of the layer. With B = 1
they are the gradients of each sample. Other letters as in ops/recurrent.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.ops._gate_gradients import GateGradients, gate_gradients
from bppsa_lightning.ops._mapped import unfold
from bppsa_lightning.ops._recurrent_autograd import Operands


def member_gradients(
    run: Callable[..., tuple[Tensor | None, ...]],
    cell: str,
    reverse: bool,
    wanted: Sequence[bool],
    incoming: Sequence[Tensor | None],
    output: Tensor,
    operands: Operands,
    V: int,
) -> tuple[Tensor | None, ...]:
    """The gradients of the operands that are wanted, in their order.

    Args:
        run: a backward of the layer, of (operands, wanted); its forward kept the gates.
        incoming: the gradients of output, h_n and c_n, or None.
        output: of the forward.

    Returns:
        Of x, h0 and c0 with a batch of V * B; of weights (V, *shape).
    """
    if not any(wanted[3:]):
        return run(operands, wanted)
    T, batch = operands.x.shape[:2]

    def backward() -> tuple[Any, ...]:
        nothing = operands.x.new_zeros(1, 1, len(operands.w_hh)).expand(T, batch, -1)
        asked = (True, *wanted[1:3], *[False] * 5)
        return run(operands._replace(x=nothing, w_ih=None), asked)[:3]

    d = gate_gradients(cell, reverse, operands, output, incoming, backward)
    x = None
    if wanted[0]:
        x = d.of_x if operands.w_ih is None else d.of_x @ operands.w_ih
    return (x, d.h0, d.c0, *_of_weights(d, reverse, wanted[3:], output, operands, V))


def _of_weights(
    d: GateGradients,
    reverse: bool,
    wanted: Sequence[bool],
    output: Tensor,
    operands: Operands,
    V: int,
) -> list[Tensor | None]:
    """Those of w_ih, w_hh, b_ih, b_hh and w_hr."""
    found: list[Tensor | None] = [None] * 5
    if wanted[0]:
        found[0] = _product(d.of_x, operands.x, V)
    if wanted[1]:
        found[1] = torch.cat(
            [_of_w_hh(part, reverse, output, operands.h0, V) for part in d.of_h], 1
        )
    if wanted[2]:
        found[2] = unfold(d.of_x, V, 1).sum((0, 2))
    if wanted[3]:
        alike = found[2] if d.of_h[0] is d.of_x else None
        parts = [unfold(part, V, 1).sum((0, 2)) for part in d.of_h] if alike is None else []
        found[3] = torch.cat(parts, 1) if alike is None else alike.clone()
    if wanted[4]:
        assert d.of_projected is not None and d.projected is not None
        found[4] = _product(d.of_projected, d.projected, V)
    return found


def _of_w_hh(rows: Tensor, reverse: bool, output: Tensor, h0: Tensor | None, V: int) -> Tensor:
    """Rows (T, V * B, R) times the state before each step: (V, R, P)."""
    later, earlier = (slice(-1), slice(1, None)) if reverse else (slice(1, None), slice(-1))
    found = _product(rows[later], output[earlier], V)
    if h0 is None:
        return found
    return found + _product(rows[-1:] if reverse else rows[:1], h0.unsqueeze(0), V)


def _product(rows: Tensor, columns: Tensor, V: int) -> Tensor:
    """(V, R, C), the sum over steps and samples of rows (T, V * B, R) times columns (…, C)."""
    left = unfold(rows, V, 1).permute(1, 3, 0, 2).flatten(2)
    right = unfold(columns, V, 1).transpose(0, 1).flatten(1, 2)
    return torch.bmm(left, right)
