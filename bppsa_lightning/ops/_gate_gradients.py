"""The gradients of a recurrent layer's pre-activations, step by step, by the operators there are.

Letters as in ops/recurrent.py. The backward operator adds gradients of weights up over all samples,
and its gates' gradients never leave the cache. But without W_ih, when x is what W_ih would make of
it, the gradient of x is that of the gates. Where the forward kept its gates, a backward reads
nothing of x: so any layer can be run backwards like that.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from bppsa_lightning.ops._recurrent_autograd import Operands
from bppsa_lightning.ops.diagonal import linear_recurrence
from bppsa_lightning.reference import of_input

# As of a layer without W_ih: gradients of x (T, B, GH), h0 and c0.
Backward = Callable[[], tuple[Tensor, Tensor | None, Tensor | None]]


class GateGradients(NamedTuple):
    """What a layer's weights are multiplied with, in the order of the tensors' steps.

    Attributes:
        of_x: (T, B, GH), the gradients of W_ih x_t + b_ih.
        of_h: those of W_hh h_{t-1} + b_hh, in parts whose last dimensions make up GH.
        h0, c0: (B, P) and (B, H), those of the initial states, or None.
        of_projected, projected: (T, B, P), that of W_hr m_t, and m (T, B, H); None without W_hr.
    """

    of_x: Tensor
    of_h: tuple[Tensor, ...]
    h0: Tensor | None
    c0: Tensor | None
    of_projected: Tensor | None = None
    projected: Tensor | None = None


def gate_gradients(
    cell: str,
    reverse: bool,
    operands: Operands,
    output: Tensor,
    incoming: Sequence[Tensor | None],
    backward: Backward,
) -> GateGradients:
    """All of them.

    Args:
        output: of the forward, (T, B, P).
        incoming: the gradients of output, h_n and c_n, or None.
    """
    w_hh = operands.w_hh
    d, h0, c0 = backward()
    if cell == "gru":  # n = tanh(… + r (W_hn h + b_hn))
        H = w_hh.shape[1]
        r = torch.sigmoid(_gates(operands, output, reverse, H))
        return GateGradients(d, (d[..., : 2 * H], d[..., 2 * H :] * r), h0, c0)
    if operands.w_hr is None:
        return GateGradients(d, (d,), h0, c0)
    grad_output, grad_h_n, _ = incoming
    sent = d @ w_hh  # by each step to the state before it
    entering = torch.zeros_like(sent[0]) if grad_h_n is None else grad_h_n
    of_projected = after(sent, entering, reverse)
    if grad_output is not None:
        of_projected = of_projected + grad_output
    return GateGradients(d, (d,), h0, c0, of_projected, _projected(operands, output, reverse))


def _gates(operands: Operands, output: Tensor, reverse: bool, rows: int) -> Tensor:
    """The pre-activations again, of the first rows of the weights."""
    bias = _rows(operands.b_ih, rows)
    if operands.w_ih is None:
        of_x = of_input(operands.x[..., :rows], None, bias)
    else:
        of_x = of_input(operands.x, operands.w_ih[:rows], bias)
    states = before(output, operands.h0, reverse)
    return of_x + linear(states, operands.w_hh[:rows], _rows(operands.b_hh, rows))


def _projected(operands: Operands, output: Tensor, reverse: bool) -> Tensor:
    """m = o tanh(c), which a projection hides: all states h are known, so c is linear in time."""
    i, f, g, o = _gates(operands, output, reverse, operands.w_hh.shape[0]).chunk(4, -1)
    f, entering = torch.sigmoid(f), torch.sigmoid(i) * torch.tanh(g)
    if reverse:
        c = linear_recurrence(f.flip(0), entering.flip(0), operands.c0).flip(0)
    else:
        c = linear_recurrence(f, entering, operands.c0)
    return torch.sigmoid(o) * torch.tanh(c)


def before(states: Tensor, first: Tensor | None, reverse: bool) -> Tensor:
    """The state before each step: `first`, or zeros, before the first one."""
    zeros = torch.zeros_like(states[:1]) if first is None else first.unsqueeze(0)
    return torch.cat([states[1:], zeros] if reverse else [zeros, states[:-1]])


def after(values: Tensor, last: Tensor, reverse: bool) -> Tensor:
    """The value of the step after each one: `last` after the last."""
    last = last.unsqueeze(0)
    return torch.cat([last, values[:-1]] if reverse else [values[1:], last])


def _rows(bias: Tensor | None, rows: int) -> Tensor | None:
    return None if bias is None else bias[:rows]
