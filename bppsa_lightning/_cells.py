"""The recurrent cells, a record each: the one place that knows their names and sizes."""

from typing import NamedTuple


class Cell(NamedTuple):
    """One recurrent cell.

    Attributes:
        name: in csrc and in `bppsa_lightning.ops`.
        label: for people.
        kind: the name of PyTorch's class, "RNN", "GRU" or "LSTM"; for a cell that PyTorch lacks, of
            the one whose measured times stand for its own.
        gates: blocks of H rows in w_ih and w_hh.
        saved: numbers a unit and step that the forward saves for the backward, with all gates.
        has_c: whether its state has a second part, c.
        sees_c: whether gates see c; what they take of it stands in the place of b_hh.
        in_torch: whether PyTorch has a layer of it, which `attach` finds and calibration times.
    """

    name: str
    label: str
    kind: str
    gates: int
    saved: int
    has_c: bool = False
    sees_c: bool = False
    in_torch: bool = True

    def row_work(self, inputs: int, hidden: int, shown: int) -> int:
        """Multiply-adds of a step of a sample, and some for its gates: I, H and P numbers."""
        return self.gates * hidden * (inputs + shown + 8)


CELLS = {
    cell.name: cell
    for cell in (
        Cell("rnn_tanh", "RNN-tanh", "RNN", 1, 0),
        Cell("rnn_relu", "RNN-relu", "RNN", 1, 0),
        Cell("gru", "GRU", "GRU", 3, 4),
        Cell("ligru", "Li-GRU", "GRU", 2, 4, in_torch=False),
        Cell("lstm", "LSTM", "LSTM", 4, 5, has_c=True),
        Cell("peephole", "peephole LSTM", "LSTM", 4, 5, True, sees_c=True, in_torch=False),
    )
}
