"""`bl.nn.LayerNormGRU`: a GRU with layer normalisation."""

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


class LayerNormGRU(Recurrent):
    """A GRU whose sums of the input and of the state are normalised, gates and candidate apart.

    With LN(v) = (v - mean(v)) / sqrt(var(v) + 1e-5), over 2H entries for r and z together, and over
    H for n; W_i of rows r, z, W_in of rows n, and so on::

        r, z = σ(norm_i LN(W_i x_t) + b_i + norm_h LN(W_h h_{t-1}) + b_h)
        n    = tanh(norm_in LN(W_in x_t) + b_in + r (norm_hn LN(W_hn h_{t-1}) + b_hn))
        h_t  = (1 - z) n + z h_{t-1}

    Source: Ba, Kiros, Hinton, arXiv:1607.06450, the GRU of its supplement, with torch.nn.GRU's z
    (the paper's is 1 - z). Parameters are those of torch.nn.GRU (b_ih and b_hh are the norms'
    shifts), and `norm_ih`, `norm_hh` (3H,). Gains begin as 1, shifts as 0.
    """

    walks_rows: ClassVar[bool] = True
    cell = Cell("layer_norm_gru", "layer-norm GRU", "GRU", 3, 4)

    def shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        rows = (3 * self.hidden_size,)
        return super().shapes(inputs) | {"norm_ih": rows, "norm_hh": rows}

    def reset_parameters(self) -> None:
        super().reset_parameters()
        gains_and_shifts(self)

    def project(self, x: Tensor, w: Weights, place: int) -> Tensor:
        both = self._normalised(ops.linear(x, w["weight_ih"]), w["norm_ih"], w.get("bias_ih"))
        return torch.cat(both, -1)

    def for_rows(self, w: Weights) -> by_rows.Weights:
        return by_rows.Weights(
            "gru", w["weight_hh"], w.get("bias_hh"), w["norm_hh"],
            w_ih=w["weight_ih"], b_ih=w.get("bias_ih"), norm_ih=w["norm_ih"],
        )  # fmt: skip

    def step(self, w: Weights, x: Tensor, state: Tensors, entering: Tensor) -> tuple[Tensor, ...]:
        of_h = linear(entering, w["weight_hh"])
        gates, candidate = self._normalised(of_h, w["norm_hh"], w.get("bias_hh"))
        H = self.hidden_size
        r, z = torch.sigmoid(x[:, : 2 * H] + gates).chunk(2, -1)
        n = torch.tanh(torch.addcmul(x[:, 2 * H :], r, candidate))
        return (torch.lerp(n, state[0], z),)

    def _normalised(self, x: Tensor, gain: Tensor, shift: Tensor | None) -> list[Tensor]:
        """Gates, and candidate."""
        H = self.hidden_size
        sizes = [2 * H, H]
        shifts = [None, None] if shift is None else shift.split(sizes)
        parts = zip(x.split(sizes, -1), gain.split(sizes), shifts, strict=True)
        return [layer_norm(part, part.shape[-1:], g, s) for part, g, s in parts]
