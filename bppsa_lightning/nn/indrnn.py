"""`bl.nn.IndRNN`: units that hand their state to themselves alone."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bppsa_lightning import ops
from bppsa_lightning._cells import Cell
from bppsa_lightning.nn import by_rows
from bppsa_lightning.nn.base import Weights
from bppsa_lightning.nn.operated import OfSums
from bppsa_lightning.recurrent.packed import Tensors


class IndRNN(OfSums):
    """An independently recurrent layer: h_t = φ(W_ih x_t + b_ih + u h_{t-1}), u h unit by unit.

    Source: Li et al., arXiv:1803.04831, equation 2. Parameters: `weight_ih` (H, I), `weight_hh`
    (H,), which is u, `bias_ih` (H,). u begins uniformly in [0, 1]. Recurrent dropout is of the h
    that is multiplied by u.

    Args:
        nonlinearity: φ, "relu" or "tanh".
        args, kwargs: of `Recurrent`.
    """

    walks_rows: ClassVar[bool] = True
    cell = Cell("indrnn", "IndRNN", "RNN", 1, 0)

    def __init__(self, *args: Any, nonlinearity: str = "relu", **kwargs: Any) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity: found {nonlinearity!r}, wanted 'tanh' or 'relu'")
        super().__init__(*args, **kwargs)
        self.nonlinearity = nonlinearity

    def shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        H = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (H, inputs), "weight_hh": (H,)}
        return shapes | ({"bias_ih": (H,)} if self.bias else {})

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for name, parameter in self.named_parameters():
            if name.startswith("weight_hh"):
                nn.init.uniform_(parameter, 0, 1)

    def step(self, w: Weights, x: Tensor, state: Tensors, entering: Tensor) -> tuple[Tensor, ...]:
        summed = torch.addcmul(x, w["weight_hh"], entering)
        return (torch.relu(summed) if self.nonlinearity == "relu" else torch.tanh(summed),)

    def for_rows(self, w: Weights) -> by_rows.Weights:
        return by_rows.Weights(
            f"rnn_{self.nonlinearity}", w["weight_hh"], w_ih=w["weight_ih"], b_ih=w.get("bias_ih")
        )

    def operate(self, x: Tensor, states: Tensors, w: Weights, reverse: bool) -> tuple[Tensor, ...]:
        h0 = states[0] if states else None
        return ops.indrnn(x, h0, w["weight_hh"], self.nonlinearity, reverse=reverse)

    def extra_repr(self) -> str:
        return super().extra_repr() + ", nonlinearity=tanh" * (self.nonlinearity == "tanh")
