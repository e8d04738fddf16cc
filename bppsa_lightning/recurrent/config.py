"""What a recurrent module's constructor fixed, read once: nothing here changes from call to call.

I input, H hidden, P state that is shown (H, or an LSTM's projection), G gates.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

_GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "GRU": 3, "LSTM": 4}
_FOR_PEOPLE = {"RNN_TANH": "RNN-tanh", "RNN_RELU": "RNN-relu"}


@dataclass(frozen=True)
class Form:
    """The sizes of an `nn.RNN`, `nn.GRU` or `nn.LSTM`.

    Attributes:
        kind: the name of PyTorch's class: "RNN", "GRU" or "LSTM".
        cell: "rnn_tanh", "rnn_relu", "gru" or "lstm".
        cell_name: the same for people.
        input_size: I. hidden: H. state: P.
        layers: their number. directions: 1 or 2.
        bias: whether there are biases. projected: whether there is a projection.
        names: of the weights, in the order of layers, then directions, then w_ih, w_hh, b_ih,
            b_hh, w_hr.
        shapes: of the weights, in the same order.
        state_sizes: of each state: (P,), or (P, H) for an LSTM's h and c.
    """

    kind: str
    cell: str
    cell_name: str
    input_size: int
    hidden: int
    state: int
    layers: int
    directions: int
    bias: bool
    projected: bool
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    state_sizes: tuple[int, ...]

    @staticmethod
    def of(module: nn.RNNBase) -> Form:
        """The form of a module."""
        mode, H = module.mode, module.hidden_size
        P, directions = module.proj_size or H, 2 if module.bidirectional else 1
        rows = _GATES[mode] * H
        shapes: list[tuple[int, ...]] = []
        for layer in range(module.num_layers):
            columns = directions * P if layer else module.input_size
            one: list[tuple[int, ...]] = [(rows, columns), (rows, P)]
            one += [(rows,), (rows,)] if module.bias else []
            one += [(P, H)] if module.proj_size else []
            shapes += one * directions
        return Form(
            kind="RNN" if mode.startswith("RNN") else mode,
            cell=mode.lower(),
            cell_name=_FOR_PEOPLE.get(mode, mode),
            input_size=module.input_size,
            hidden=H,
            state=P,
            layers=module.num_layers,
            directions=directions,
            bias=bool(module.bias),
            projected=bool(module.proj_size),
            names=tuple(module._flat_weights_names),
            shapes=tuple(shapes),
            state_sizes=(P, H) if mode == "LSTM" else (P,),
        )

    @property
    def weights_a_scan(self) -> int:
        """How many weights one direction of one layer has."""
        return 2 + 2 * self.bias + self.projected

    @property
    def stack(self) -> str:
        """The layers for people: "2", or "2 both ways"."""
        return f"{self.layers} both ways" if self.directions == 2 else str(self.layers)
