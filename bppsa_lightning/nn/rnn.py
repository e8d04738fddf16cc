"""`bl.nn.RNN`: torch.nn.RNN as a plain module, with resets."""

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning._cells import CELLS
from bppsa_lightning.nn.base import Weights
from bppsa_lightning.nn.of_torch import OfTorch, from_state
from bppsa_lightning.recurrent.packed import Tensors


class RNN(OfTorch):
    """torch.nn.RNN: h_t = φ(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), φ = tanh or relu.

    Parameters, state_dict, arguments and results are those of torch.nn.RNN; what is new:
    `forward(input, hx, reset)`, and the options of `Recurrent`.

    Args:
        nonlinearity: "tanh" or "relu"; by position the fourth argument, as in torch.
        args, kwargs: of `Recurrent`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if len(args) > 3:
            self_nonlinearity, args = args[3], args[:3] + args[4:]
        else:
            self_nonlinearity = kwargs.pop("nonlinearity", "tanh")
        if self_nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"Unknown nonlinearity '{self_nonlinearity}'. Select from 'tanh' or 'relu'."
            )
        object.__setattr__(self, "cell", CELLS[f"rnn_{self_nonlinearity}"])
        super().__init__(*args, **kwargs)
        self.nonlinearity: str = self_nonlinearity

    def step(self, w: Weights, x: Tensor, state: Tensors, entering: Tensor) -> tuple[Tensor, ...]:
        summed = x + from_state(w, entering)
        return (torch.tanh(summed) if self.nonlinearity == "tanh" else torch.relu(summed),)

    def extra_repr(self) -> str:
        return super().extra_repr() + ", nonlinearity=relu" * (self.nonlinearity == "relu")
