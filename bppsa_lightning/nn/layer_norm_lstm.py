"""`bl.nn.LayerNormLSTM`: an LSTM with layer normalisation."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from bppsa_lightning import ops
from bppsa_lightning._cells import Cell
from bppsa_lightning.nn import by_rows
from bppsa_lightning.nn.base import Recurrent, Weights
from bppsa_lightning.nn.layer_norm import gains_and_shifts
from bppsa_lightning.recurrent.packed import Tensors


class LayerNormLSTM(Recurrent):
    """An LSTM whose sums of the input, of the state and whose c are normalised, each by itself.

    With LN(v) = (v - mean(v)) / sqrt(var(v) + 1e-5) over all 4H, or H, entries of a vector::

        i, f, g, o = norm_ih LN(W_ih x_t) + b_ih + norm_hh LN(W_hh h_{t-1}) + b_hh
        c_t = σ(f) c_{t-1} + σ(i) tanh(g)
        h_t = σ(o) tanh(norm_c LN(c_t) + b_c)

    Source: Ba, Kiros, Hinton, arXiv:1607.06450, equations 20 to 22. Parameters are those of
    torch.nn.LSTM (b_ih and b_hh are the norms' shifts), and `norm_ih`, `norm_hh` (4H,), `norm_c`,
    `bias_c` (H,). Gains begin as 1, shifts as 0.
    """

    walks_rows: ClassVar[bool] = True
    cell = Cell("layer_norm_lstm", "layer-norm LSTM", "LSTM", 4, 5, has_c=True)

    def shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        H = self.hidden_size
        shapes = super().shapes(inputs) | {"norm_ih": (4 * H,), "norm_hh": (4 * H,), "norm_c": (H,)}
        return shapes | ({"bias_c": (H,)} if self.bias else {})

    def reset_parameters(self) -> None:
        super().reset_parameters()
        gains_and_shifts(self)

    def project(self, x: Tensor, w: Weights, place: int) -> Tensor:
        rows = (4 * self.hidden_size,)
        return layer_norm(ops.linear(x, w["weight_ih"]), rows, w["norm_ih"], w.get("bias_ih"))

    def for_rows(self, w: Weights) -> by_rows.Weights:
        return by_rows.Weights(
            "lstm", w["weight_hh"], w.get("bias_hh"), w["norm_hh"], w["norm_c"], w.get("bias_c"),
            w["weight_ih"], w.get("bias_ih"), w["norm_ih"],
        )  # fmt: skip

    def step(self, w: Weights, x: Tensor, state: Tensors, entering: Tensor) -> tuple[Tensor, ...]:
        H = self.hidden_size
        of_h = linear(entering, w["weight_hh"])
        gates = x + layer_norm(of_h, (4 * H,), w["norm_hh"], w.get("bias_hh"))
        i, f, g, o = gates.chunk(4, -1)
        c = torch.addcmul(torch.sigmoid(f) * state[1], torch.sigmoid(i), torch.tanh(g))
        shown = torch.tanh(layer_norm(c, (H,), w["norm_c"], w.get("bias_c")))
        return torch.sigmoid(o) * shown, c
