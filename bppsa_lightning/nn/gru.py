"""`bl.nn.GRU`: torch.nn.GRU as a plain module, with resets."""

import torch
from torch import Tensor

from bppsa_lightning._cells import CELLS
from bppsa_lightning.nn.base import Weights
from bppsa_lightning.nn.of_torch import OfTorch, from_state
from bppsa_lightning.recurrent.packed import Tensors


class GRU(OfTorch):
    """torch.nn.GRU: h_t = (1 - z) n + z h_{t-1}, with gates r and z.

    Parameters, state_dict, arguments and results are those of torch.nn.GRU; what is new:
    `forward(input, hx, reset)`, and the options of `Recurrent`.
    """

    cell = CELLS["gru"]

    def step(self, w: Weights, x: Tensor, state: Tensors, entering: Tensor) -> tuple[Tensor, ...]:
        H = self.hidden_size
        of_h = from_state(w, entering)
        r, z = torch.sigmoid(x[:, : 2 * H] + of_h[:, : 2 * H]).chunk(2, -1)
        n = torch.tanh(torch.addcmul(x[:, 2 * H :], r, of_h[:, 2 * H :]))
        return (torch.lerp(n, state[0], z),)
