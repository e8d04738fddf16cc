"""`bl.nn.LSTM`: torch.nn.LSTM as a plain module, with resets."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from bppsa_lightning._cells import CELLS
from bppsa_lightning.nn.base import Weights
from bppsa_lightning.nn.of_torch import OfTorch, from_state
from bppsa_lightning.recurrent.packed import Tensors


class LSTM(OfTorch):
    """torch.nn.LSTM: c_t = f c_{t-1} + i g, h_t = o tanh(c_t), or W_hr (o tanh(c_t)).

    Parameters, state_dict, arguments and results are those of torch.nn.LSTM, projections too; what
    is new: `forward(input, hx, reset)`, and the options of `Recurrent`.
    """

    cell = CELLS["lstm"]
    projects: ClassVar[bool] = True

    def shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        projection = {"weight_hr": (self.proj_size, self.hidden_size)} if self.proj_size else {}
        return super().shapes(inputs) | projection

    def step(self, w: Weights, x: Tensor, state: Tensors, entering: Tensor) -> tuple[Tensor, ...]:
        i, f, g, o = (x + from_state(w, entering)).chunk(4, -1)
        c = torch.addcmul(torch.sigmoid(f) * state[1], torch.sigmoid(i), torch.tanh(g))
        h = torch.sigmoid(o) * torch.tanh(c)
        return linear(h, w["weight_hr"]) if self.proj_size else h, c
