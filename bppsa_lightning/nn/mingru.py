"""`bl.nn.MinGRU`: a GRU that is linear in its state."""

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import ops
from bppsa_lightning._cells import Cell
from bppsa_lightning.nn import by_scan
from bppsa_lightning.nn.base import Recurrent, Weights
from bppsa_lightning.nn.operated import ROWS_OF_A_KERNEL
from bppsa_lightning.recurrent.packed import Tensors


class MinGRU(Recurrent):
    """A GRU whose gate and candidate see the input alone: h_t = (1 - σ(z)) h_{t-1} + σ(z) n.

    With z, n = W_ih x_t + b_ih, rows in that order. Linear in h, so that `bl.ops.linear_recurrence`
    computes all steps, in parallel where that pays; with zoneout too.

    Source: Feng et al., Were RNNs all we needed?, arXiv:2410.01201, section 3.1. Parameters:
    `weight_ih` (2H, I), `bias_ih` (2H,).

    Args:
        args, kwargs: of `Recurrent`, but recurrent_dropout: nothing enters a W_hh here.
    """

    cell = Cell("mingru", "minGRU", "GRU", 2, 0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.recurrent_dropout:
            raise ValueError(
                f"recurrent_dropout: found {self.recurrent_dropout}, wanted 0, as a minGRU has no "
                "W_hh for its state to enter"
            )

    def shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        rows = 2 * self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, inputs)}
        return shapes | ({"bias_ih": (rows,)} if self.bias else {})

    @property
    def step_rows(self) -> int:
        return ROWS_OF_A_KERNEL

    def walk(
        self, x: Tensor, states: Tensors, w: Weights, reverse: bool, marked: bool
    ) -> tuple[Tensor, ...]:
        z, n = x[..., : 2 * self.hidden_size].chunk(2, -1)
        z = torch.sigmoid(z)
        if self.zoneout and self.training:
            z = z.masked_fill(by_scan.drawn(self.zoneout, tuple(z.shape), z), 0)
        elif self.zoneout:
            z = z * (1 - self.zoneout)
        if marked:  # where there is padding, h stands still
            z = z.masked_fill(x[..., -1:] != 0, 0)
        decay, added = 1 - z, z * n
        if reverse:
            decay, added = decay.flip(0), added.flip(0)
        h = ops.linear_recurrence(decay, added, states[0] if states else None)
        return h.flip(0) if reverse else h, h[-1]
