"""`bl.nn.PeepholeLSTM`: gates that see the cell's state."""

from typing import ClassVar

import torch
from torch import Tensor

from bppsa_lightning import ops
from bppsa_lightning._cells import CELLS
from bppsa_lightning.nn import by_rows
from bppsa_lightning.nn.base import Weights
from bppsa_lightning.nn.of_torch import from_state
from bppsa_lightning.nn.operated import OfInput
from bppsa_lightning.recurrent.packed import Tensors


class PeepholeLSTM(OfInput):
    """An LSTM whose gates i, f see c_{t-1}, and whose gate o sees c_t, each unit its own.

    With a = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh, rows in the order i, f, g, o::

        i = σ(a_i + p_i c_{t-1})      f = σ(a_f + p_f c_{t-1})      g = tanh(a_g)
        c_t = f c_{t-1} + i g         o = σ(a_o + p_o c_t)          h_t = o tanh(c_t)

    Source: Gers, Schraudolph, Schmidhuber, Learning precise timing with LSTM recurrent networks,
    JMLR 3, 2002. Parameters are those of torch.nn.LSTM, and `weight_ch` (3H,): p_i, p_f, p_o.
    """

    walks_rows: ClassVar[bool] = True
    cell = CELLS["peephole"]

    def shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        return super().shapes(inputs) | {"weight_ch": (3 * self.hidden_size,)}

    def step(self, w: Weights, x: Tensor, state: Tensors, entering: Tensor) -> tuple[Tensor, ...]:
        c = state[1]
        i, f, g, o = (x + from_state(w, entering)).chunk(4, -1)
        p_i, p_f, p_o = w["weight_ch"].chunk(3)
        i, f = torch.sigmoid(torch.addcmul(i, p_i, c)), torch.sigmoid(torch.addcmul(f, p_f, c))
        c = torch.addcmul(f * c, i, torch.tanh(g))
        return torch.sigmoid(torch.addcmul(o, p_o, c)) * torch.tanh(c), c

    def for_rows(self, w: Weights) -> by_rows.Weights:
        p_i, p_f, p_o = w["weight_ch"].chunk(3)
        peepholes = torch.cat([p_i, p_f, torch.zeros_like(p_i), p_o])
        b_ih = w["bias_ih"] + w["bias_hh"] if self.bias else None
        return by_rows.Weights(
            "peephole", w["weight_hh"], peepholes, w_ih=w["weight_ih"], b_ih=b_ih
        )

    def operate(self, x: Tensor, states: Tensors, w: Weights, reverse: bool) -> tuple[Tensor, ...]:
        h0, c0 = (*states, None, None)[:2]
        return ops.peephole_lstm(
            x, h0, c0, w["weight_ih"], w["weight_hh"], w["weight_ch"], w.get("bias_ih"),
            w.get("bias_hh"), reverse=reverse,
        )  # fmt: skip
