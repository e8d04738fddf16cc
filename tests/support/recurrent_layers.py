"""One recurrent layer as a function of tensors by name: ours, the reference, and PyTorch's.

T steps, B batch, I input, H hidden, P state that is put out (H, or less with a projection).
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning import _cells, reference
from bppsa_lightning.ops.recurrent import _checked_layer


class Cell(NamedTuple):
    name: str  # in csrc
    gates: int
    projected: bool = False

    @property
    def has_c(self):
        return _cells.CELLS[self.name].has_c

    @property
    def nonlinearity(self):
        """The setting that says which RNN it is."""
        return {"nonlinearity": self.name[4:]} if self.name.startswith("rnn") else {}


GATES = {name: cell.gates for name, cell in _cells.CELLS.items()}  # in the order of cells/list.h
IN_TORCH = [name for name, cell in _cells.CELLS.items() if cell.in_torch]
TWO_STATES = [name for name, cell in _cells.CELLS.items() if cell.has_c]
CELLS = {cell.label: Cell(name, cell.gates) for name, cell in _cells.CELLS.items()}
CELLS["LSTM projected"] = Cell("lstm", 4, projected=True)
ALGORITHMS = ["linear", "chunked", "blelloch"]
NAMES = ["x", "h0", "c0", "w_ih", "w_hh", "b_ih", "b_hh", "w_hr"]


def draw(cell, size, dtype=torch.float64, gain=1.0, bias=True, state=True, seed=0):
    """The operands of a layer of size T, B, I, H; recurrent matrices of radius about `gain`.

    The same numbers in every dtype: they are rounded to float32.
    """
    T, B, I, H = size
    P = max(1, H // 2) if cell.projected else H
    generator = torch.Generator().manual_seed(seed)

    def some(*shape, scale=1.0):
        numbers = torch.randn(*shape, dtype=torch.float64, generator=generator) * scale
        return numbers.float().to(dtype)

    rows = cell.gates * H
    tensors = {
        "x": some(T, B, I),
        "h0": some(B, P),
        "c0": some(B, H),
        "w_ih": some(rows, I),
        "w_hh": some(rows, P, scale=gain / P**0.5),
        "b_ih": some(rows),
        "b_hh": some(rows, scale=gain if cell.name == "peephole" else 1.0),  # recurrent there
        "w_hr": some(P, H, scale=H**-0.5),
    }
    absent = {"c0"} if not cell.has_c else set()
    absent |= set() if cell.projected else {"w_hr"}
    absent |= set() if bias else {"b_ih", "b_hh"}
    absent |= set() if state else {"h0", "c0"}
    return {name: t for name, t in tensors.items() if name not in absent}


def cotangents(cell, tensors, names=("output", "h_n", "c_n"), seed=1):
    """Gradients that flow in at the results called so; the same numbers in every dtype."""
    x, w_hh = tensors["x"], tensors["w_hh"]
    (T, B, _), (rows, P) = x.shape, w_hh.shape
    generator = torch.Generator().manual_seed(seed)
    shapes = {"output": (T, B, P), "h_n": (B, P)}
    shapes |= {"c_n": (B, rows // cell.gates)} if cell.has_c else {}
    return {
        name: torch.randn(shape, generator=generator).to(x.dtype)
        for name, shape in shapes.items()
        if name in names
    }


def _without_a_name(cell, *, algorithm, reverse, **operands):
    """A cell whose public operator has other operands."""
    return _checked_layer(cell, bl.ops.Operands(**operands), reverse, algorithm, None)


def ours(cell, tensors, algorithm="auto", reverse=False):
    """The public operator's results by name."""
    operator = getattr(bl.ops, cell.name.split("_")[0], None) or partial(_without_a_name, cell.name)
    given = {name: None for name in NAMES[1 : 3 if cell.has_c else 2]} | tensors
    found = operator(**given, **cell.nonlinearity, algorithm=algorithm, reverse=reverse)
    return dict(zip(("output", "h_n", "c_n"), found))


def zero_states(cell, tensors):
    """h0 and, for an LSTM, c0, zeros where none are given."""
    (B, w_hh) = tensors["x"].shape[1], tensors["w_hh"]
    widths = {"h0": w_hh.shape[1]} | ({"c0": w_hh.shape[0] // cell.gates} if cell.has_c else {})
    return [tensors.get(name, w_hh.new_zeros(B, width)) for name, width in widths.items()]


def true(cell, tensors, reverse=False):
    """The reference's results by name."""
    function = getattr(reference, cell.name.split("_")[0])
    rest = {name: t for name, t in tensors.items() if name not in ("x", "h0", "c0")}
    states = zero_states(cell, tensors)
    found = function(tensors["x"], *states, **rest, **cell.nonlinearity, reverse=reverse)
    last = 0 if reverse else -1
    if not cell.has_c:
        return {"output": found, "h_n": found[last]}
    return {"output": found[0], "h_n": found[0][last], "c_n": found[1][last]}


def stock(cell, tensors, reverse=False):
    """The results by name of PyTorch's own layer (which has both biases or none).

    Of a cell that PyTorch lacks: by PyTorch's operations, step by step.
    """
    if not hasattr(torch, cell.name.split("_")[0]):
        return true(cell, tensors, reverse)
    x = tensors["x"].flip(0) if reverse else tensors["x"]
    states = [state.unsqueeze(0) for state in zero_states(cell, tensors)]
    weights = [tensors[name] for name in NAMES[3:] if name in tensors]
    operator, hx = getattr(torch, cell.name), states if cell.has_c else states[0]
    output, *last = operator(x, hx, weights, "b_ih" in tensors, 1, 0.0, True, False, False)
    found = {"output": output.flip(0) if reverse else output}
    return found | dict(zip(("h_n", "c_n"), (state[0] for state in last)))


def results(layer, cell, tensors, incoming, **settings):
    """All results of a layer, and by "grad of NAME" all gradients of the `incoming` ones.

    A tensor that does not require a gradient gets none if any other does.
    """
    if not any(t.requires_grad for t in tensors.values()):
        tensors = {name: t.detach().requires_grad_() for name, t in tensors.items()}
    leaves = {name: t for name, t in tensors.items() if t.requires_grad}
    found = layer(cell, tensors, **settings)
    gradients = torch.autograd.grad(
        [found[name] for name in incoming],
        list(leaves.values()),
        list(incoming.values()),
        allow_unused=True,
        materialize_grads=True,
    )
    found = {name: value.detach() for name, value in found.items()}
    return found | {f"grad of {name}": g for name, g in zip(leaves, gradients)}


def widened(tensors):
    return {name: t.double() for name, t in tensors.items()}


class ByReference(nn.Module):
    """A layer of a cell that PyTorch lacks, as its own would be: by the reference."""

    def __init__(self, cell, I, H, bias=True, proj_size=None, dtype=None):
        super().__init__()
        self.cell, rows = cell, GATES[cell] * H
        shapes = {"weight_ih_l0": (rows, I), "weight_hh_l0": (rows, proj_size or H)}
        shapes |= {"weight_hr_l0": (proj_size, H)} if proj_size else {}
        for name, shape in (shapes | {"bias_ih_l0": (rows,), "bias_hh_l0": (rows,)}).items():
            given = bias or name in shapes
            weight = nn.Parameter((torch.rand(shape, dtype=dtype) * 2 - 1) / H**0.5)
            self.register_parameter(name, weight if given else None)

    def forward(self, x, hx):
        weights = self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0
        layer = getattr(reference, self.cell)
        if not _cells.CELLS[self.cell].has_c:
            output = layer(x, hx[0], *weights)
            return output, output[-1:]
        weights = *weights, getattr(self, "weight_hr_l0", None)
        output, c = layer(x, hx[0][0], hx[1][0], *weights)
        return output, (output[-1:], c[-1:])


def module(cell, I, H, **more):
    """A layer of a cell: PyTorch's, or where it has none the reference's."""
    if cell not in IN_TORCH:
        return ByReference(cell, I, H, **more)
    kind = {"gru": nn.GRU, "lstm": nn.LSTM}.get(cell, nn.RNN)
    return kind(I, H, **more, **Cell(cell, GATES[cell]).nonlinearity)
