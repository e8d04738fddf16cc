"""What a recurrent module's constructor fixed, read once: nothing here changes from call to call.

I input, H hidden, P state that is shown (H, or an LSTM's projection), G gates.
"""

from typing import NamedTuple, Protocol

from torch import nn

from bppsa_lightning._cells import CELLS, Cell


class Stack(Protocol):
    """What has to be known of layers to run them in turn, whosever they are."""

    @property
    def cell(self) -> Cell: ...

    @property
    def layers(self) -> int: ...

    @property
    def directions(self) -> int: ...

    @property
    def bias(self) -> bool: ...

    @property
    def projected(self) -> bool: ...

    @property
    def weights_per_direction(self) -> int: ...


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
        row_work: multiply-adds of a step of a sample, in the first layer, and some for its gates.
    """

    def __init__(self, module: nn.RNNBase) -> None:
        self.cell = cell = CELLS[module.mode.lower()]
        self.input_size, self.hidden_size = module.input_size, module.hidden_size
        self.output_size = P = module.proj_size or module.hidden_size
        self.layers, self.directions = module.num_layers, 2 if module.bidirectional else 1
        self.bias, self.projected = bool(module.bias), bool(module.proj_size)
        self.names = tuple(module._flat_weights_names)
        self.state_sizes = (P, self.hidden_size) if cell.has_c else (P,)
        rows = cell.gates * self.hidden_size
        self.row_work = cell.row_work(self.input_size, self.hidden_size, P)
        self.shapes: list[tuple[int, ...]] = []
        for layer in range(self.layers):
            columns = self.directions * P if layer else self.input_size
            one: list[tuple[int, ...]] = [(rows, columns), (rows, P)]
            one += [(rows,), (rows,)] if self.bias else []
            one += [(P, self.hidden_size)] if self.projected else []
            self.shapes += one * self.directions

    @property
    def weights_per_direction(self) -> int:
        """How many weights one direction of one layer has."""
        return 2 + 2 * self.bias + self.projected

    @property
    def stack(self) -> str:
        """The layers for people: "2", or "2 both ways"."""
        return f"{self.layers} both ways" if self.directions == 2 else str(self.layers)


class OneLayer(NamedTuple):
    """The same of one layer in one direction, which is no module's."""

    cell: Cell
    input_size: int
    hidden_size: int
    output_size: int
    bias: bool
    projected: bool
    state_sizes: tuple[int, ...]
    layers: int = 1
    directions: int = 1
