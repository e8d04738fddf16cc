"""What a rank needs of a recurrent layer: its passes without autograd, and its steps' Jacobian.

Letters as in ops/recurrent.py; for callers who have checked the arguments.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa_lightning._cells import CELLS
from bppsa_lightning.ops._autograd import bit_mask, only
from bppsa_lightning.ops._recurrent_autograd import Operands, _run_backward


def run_backward(
    cell: str,
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    output: Tensor,
    kept: Tensor,
    operands: Operands,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """The gradients of all operands, in their order, by a walk: those of `wanted`."""
    found = _run_backward(
        cell, grad_output, grad_h_n, grad_c_n, output, kept, *operands, False, "linear", 0, 0,
        bit_mask(wanted),
    )  # fmt: skip
    return only(wanted, found)


def recurrent_jacobian(cell: str, operands: Operands, output: Tensor, kept: Tensor) -> Tensor:
    """(B, S, S), on a CPU: row i is the gradient at the first state of unit i of the last one.

    Args:
        output, kept: of a forward that kept something. S = P, and H more for an LSTM's c.
    """
    return torch.ops.bppsa.recurrent_jacobian(cell, output, kept, *operands, False)


@torch.library.register_fake("bppsa::recurrent_jacobian")
def _(
    cell: str, output: Tensor, kept: Tensor, x: Tensor, h0: Tensor | None, c0: Tensor | None,
    w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, w_hr: Tensor | None,
    reverse: bool,
) -> Tensor:  # fmt: skip
    (B, P), H = output.shape[1:], w_ih.shape[0]
    H = H // 4 if CELLS[cell].has_c else 0
    return x.new_empty(B, P + H, P + H)
