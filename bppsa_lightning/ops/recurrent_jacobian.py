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
    """(B, S, S): row i is the gradient at the first state of unit i of the last one.

    Args:
        output, kept: of a forward; on a CPU of one that kept something. S = P, and H more for an
            LSTM's c.
    """
    if output.is_cuda:
        return jacobian_by_walk(cell, operands, output, kept)
    return torch.ops.bppsa.recurrent_jacobian(cell, output, kept, *operands, False)


def jacobian_by_walk(cell: str, operands: Operands, output: Tensor, kept: Tensor) -> Tensor:
    """The same by one backward, in which each unit of each sample is a sample of its own.

    For a GPU, where S times the samples take hardly longer; its copies of what a backward reads
    have S times the size (`bytes_of_walk`).
    """
    (B, P), has_c = output.shape[1:], CELLS[cell].has_c
    H = operands.w_hh.shape[0] // CELLS[cell].gates
    S = P + H * has_c
    units = torch.eye(S, dtype=output.dtype, device=output.device).repeat(B, 1)
    h, c = units[:, :P].contiguous(), units[:, P:].contiguous() if has_c else None

    def of_each_unit(t: Tensor | None, dim: int) -> Tensor | None:
        return None if t is None else t.repeat_interleave(S, dim)

    x, h0, c0, *weights = operands
    copied = Operands(
        of_each_unit(x, 1), of_each_unit(h0, 0), of_each_unit(c0, 0), *weights  # type: ignore[arg-type]
    )  # fmt: skip
    asked = False, True, has_c, *[False] * len(weights)
    _, *found = run_backward(
        cell, None, h, c, output.repeat_interleave(S, 1), kept.repeat_interleave(S, 1), copied,
        asked,
    )  # fmt: skip
    return torch.cat([g for g in found if g is not None], 1).view(B, S, S)


def bytes_of_walk(cell: str, T: int, B: int, I: int, H: int, P: int, itemsize: int) -> int:
    """What `jacobian_by_walk` copies at most: x, outputs, and what is kept of each step."""
    gates, has_c = CELLS[cell].gates, CELLS[cell].has_c
    return T * B * (P + H * has_c) * (I + P + (gates + 2) * H) * itemsize


@torch.library.register_fake("bppsa::recurrent_jacobian")
def _(
    cell: str, output: Tensor, kept: Tensor, x: Tensor, h0: Tensor | None, c0: Tensor | None,
    w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, w_hr: Tensor | None,
    reverse: bool,
) -> Tensor:  # fmt: skip
    (B, P), H = output.shape[1:], w_ih.shape[0]
    H = H // 4 if CELLS[cell].has_c else 0
    return x.new_empty(B, P + H, P + H)
