"""What a recurrent module's constructor fixed, read once: nothing here changes from call to call.

I input, H hidden, P state that is shown (H, or an LSTM's projection), G gates.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from bppsa_lightning._cells import CELLS, Cell


@dataclass(frozen=True)
class RecurrentConfig:
    """The sizes of an `nn.RNN`, `nn.GRU` or `nn.LSTM`.

    Attributes:
        cell: its record.
        input_size: I. hidden_size: H. output_size: P.
        layers: their number. directions: 1 or 2.
        bias: whether there are biases. projected: whether there is a projection.
        names: of the weights, in the order of layers, then directions, then w_ih, w_hh, b_ih,
            b_hh, w_hr.
        shapes: of the weights, in the same order.
        state_sizes: of each state: (P,), or (P, H) for an LSTM's h and c.
    """

    cell: Cell
    input_size: int
    hidden_size: int
    output_size: int
    layers: int
    directions: int
    bias: bool
    projected: bool
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    state_sizes: tuple[int, ...]

    @staticmethod
    def of(module: nn.RNNBase) -> RecurrentConfig:
        """The configuration of a module."""
        cell, H = CELLS[module.mode.lower()], module.hidden_size
        P, directions = module.proj_size or H, 2 if module.bidirectional else 1
        rows = cell.gates * H
        shapes: list[tuple[int, ...]] = []
        for layer in range(module.num_layers):
            columns = directions * P if layer else module.input_size
            one: list[tuple[int, ...]] = [(rows, columns), (rows, P)]
            one += [(rows,), (rows,)] if module.bias else []
            one += [(P, H)] if module.proj_size else []
            shapes += one * directions
        return RecurrentConfig(
            cell=cell,
            input_size=module.input_size,
            hidden_size=H,
            output_size=P,
            layers=module.num_layers,
            directions=directions,
            bias=bool(module.bias),
            projected=bool(module.proj_size),
            names=tuple(module._flat_weights_names),
            shapes=tuple(shapes),
            state_sizes=(P, H) if cell.has_c else (P,),
        )

    @property
    def weights_per_direction(self) -> int:
        """How many weights one direction of one layer has."""
        return 2 + 2 * self.bias + self.projected

    @property
    def stack(self) -> str:
        """The layers for people: "2", or "2 both ways"."""
        return f"{self.layers} both ways" if self.directions == 2 else str(self.layers)
