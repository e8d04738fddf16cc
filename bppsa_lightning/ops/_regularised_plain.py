"""Regularised layers step by step, in plain torch: where `regularised` has no operator.

T steps, B batch, H state, G gates.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from bppsa_lightning._cells import CELLS
from bppsa_lightning.ops.linear import linear as ops_linear


def walk(cell: str, operands: Any, zoneout: float, reverse: bool) -> tuple[Tensor, ...]:
    """output (T, B, H), h_n (B, H), and of a cell with c c_n (B, H), of `Regularised` operands."""
    o = of_sums(cell, operands)
    B, H = o.x.shape[1], o.w_hh.shape[-1]
    zeros = o.x.new_zeros(B, H)
    state = [zeros if s is None else s for s in (o.h0, o.c0)[: 1 + CELLS[cell].has_c]]
    masks, outputs = (o.kept_h, o.kept_c), []
    steps = list(enumerate(o.x.unbind()))  # a trace of which refuses other numbers of steps
    for t, x in reversed(steps) if reverse else steps:
        entering = state[0] if o.enters is None else state[0] * o.enters
        now = _step(cell, o, x, _sums(cell, o, entering), state)
        for i, (new, old) in enumerate(zip(now, state, strict=True)):
            blended = torch.lerp(new, old, zoneout) if zoneout else new
            mask = masks[i]
            state[i] = blended if mask is None else torch.where(mask[t], old, blended)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if reverse else outputs), *state


def of_sums(cell: str, o: Any) -> Any:
    """The same operands with the input's sums, if they have the input and its weight."""
    if o.w_ih is None:
        return o
    if o.norm_ih is None:
        x = ops_linear(o.x, o.w_ih, o.b_ih)
    else:
        x = _normalised(cell, ops_linear(o.x, o.w_ih), o.norm_ih, o.b_ih)
    return o._replace(x=x, w_ih=None, b_ih=None, norm_ih=None)


def _sums(cell: str, o: Any, entering: Tensor) -> Tensor:
    """Of the state, (B, GH)."""
    if CELLS[cell].sees_c:
        return linear(entering, o.w_hh)
    if o.w_hh.dim() == 1:
        return entering * o.w_hh if o.b_hh is None else torch.addcmul(o.b_hh, entering, o.w_hh)
    if o.norm_hh is None:
        return linear(entering, o.w_hh, o.b_hh)
    return _normalised(cell, linear(entering, o.w_hh), o.norm_hh, o.b_hh)


def _normalised(cell: str, sums: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
    """Of all gates together, or of a GRU r and z, and n by itself."""
    GH = len(gain)
    if cell == "lstm":
        return layer_norm(sums, (GH,), gain, shift)
    sizes = [GH // 3 * 2, GH // 3]
    shifts = [None, None] if shift is None else shift.split(sizes)
    parts = zip(sums.split(sizes, -1), gain.split(sizes), shifts, strict=True)
    return torch.cat([layer_norm(part, part.shape[-1:], g, s) for part, g, s in parts], -1)


def _step(cell: str, o: Any, x: Tensor, sums: Tensor, state: list[Tensor]) -> tuple[Tensor, ...]:
    h = state[0]
    if cell == "lstm":
        i, f, g, out = (x + sums).chunk(4, 1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        shown = c if o.norm_c is None else layer_norm(c, c.shape[1:], o.norm_c, o.b_c)
        return torch.sigmoid(out) * torch.tanh(shown), c
    if cell == "peephole":
        i, f, g, out = (x + sums).chunk(4, 1)
        p_i, p_f, p_g, p_o = (0, 0, 0, 0) if o.b_hh is None else o.b_hh.chunk(4)
        c = state[1]
        i, f, g = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c), torch.tanh(g + p_g * c)
        c = f * c + i * g
        return torch.sigmoid(out + p_o * c) * torch.tanh(c), c
    if cell == "gru":
        (x_r, x_z, x_n), (r, z, n) = x.chunk(3, 1), sums.chunk(3, 1)
        n = torch.tanh(x_n + torch.sigmoid(x_r + r) * n)
        return (torch.lerp(n, h, torch.sigmoid(x_z + z)),)
    if cell == "ligru":
        z, n = (x + sums).chunk(2, 1)
        z = torch.sigmoid(z)
        return (z * h + (1 - z) * torch.relu(n),)
    return (torch.relu(x + sums) if cell == "rnn_relu" else torch.tanh(x + sums),)
