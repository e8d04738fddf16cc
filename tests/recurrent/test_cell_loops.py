"""Loops over cells that a model runs by hand: PyTorch's bits, and what they cost in explain."""

import copy
import pickle

import pytest
import torch
from support.helpers import assert_identical
from torch import nn

import bppsa_lightning as bl

CELLS = {"RNNCell": nn.RNNCell, "GRUCell": nn.GRUCell, "LSTMCell": nn.LSTMCell}


class Loop(nn.Module):
    """A loop over a cell; where a mask is false, the state begins anew."""

    def __init__(self, cell, masked=False, learned=False):
        super().__init__()
        self.cell, self.masked = cell, masked
        self.first = nn.Parameter(torch.randn(1, 5)) if learned else None

    def forward(self, x):
        state, outputs = None, []
        if self.first is not None:
            state = self.first.expand(x.shape[1], -1)
            state = (state, state) if isinstance(self.cell, nn.LSTMCell) else state
        for t, step in enumerate(x):
            state = self.cell(step, state)
            if self.masked:
                keep = float(t % 5 != 4)
                state = tuple(s * keep for s in state) if type(state) is tuple else state * keep
            outputs.append(state[0] if type(state) is tuple else state)
        return torch.stack(outputs)


def line_of(model):
    return next(
        line for line in bl.explain(model).splitlines() if "runs one step at a time" in line
    )


def run(model, x):
    model.zero_grad()
    output = model(x)
    output.square().sum().backward()
    return {"output": output.detach()} | {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize(("masked", "learned"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("kind", CELLS)
def test_a_loop_is_pytorchs_and_explained(kind, masked, learned):
    model = Loop(CELLS[kind](3, 5), masked, learned)
    stock, x = copy.deepcopy(model), torch.randn(20, 4, 3)
    assert bl.attach(model) == []
    assert "loop" not in line_of(model)
    for _ in range(2):  # the second loop is counted anew
        assert_identical(run(model, x), run(stock, x))
    line = line_of(model)
    assert "its last loop: 20 calls, " in line and " ms in their forwards" in line
    assert f"the backward of nn.{kind.removesuffix('Cell')} takes about" in line
    with torch.no_grad():
        model(x)
    assert line_of(model) == line
    bl.detach(model)
    assert "forward" not in model.cell.__dict__ and "loop" not in line_of(model)


@pytest.mark.parametrize("learned", [False, True])
def test_after_three_loops_it_is_known_and_nothing_stands_before_the_cell(learned):
    model, x = Loop(nn.GRUCell(3, 5), learned=learned), torch.randn(6, 2, 3)
    bl.attach(model)
    for _ in range(3):
        run(model, x)
        assert "forward" in model.cell.__dict__
    run(model, x)
    assert "forward" not in model.cell.__dict__ and "its last loop: 6 calls" in line_of(model)
    assert "its last loop: 6 calls" in line_of(copy.deepcopy(model))
    bl.detach(model)
    assert model.cell.__dict__.keys() == nn.GRUCell(3, 5).__dict__.keys()


class Own(nn.RNNCellBase):
    """A cell of a user's."""

    def __init__(self):
        super().__init__(3, 5, bias=True, num_chunks=1)

    def forward(self, input, hx=None):
        gates = nn.functional.linear(input, self.weight_ih, self.bias_ih)
        return gates if hx is None else gates + hx @ self.weight_hh.t()


def test_a_cell_of_the_users_own():
    model = Loop(Own())
    bl.attach(model)
    run(model, torch.randn(7, 2, 3))
    assert "its last loop: 7 calls" in line_of(model) and "backward" not in line_of(model)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_count_for_themselves(how):
    model = Loop(nn.GRUCell(3, 5))
    bl.attach(model)
    other = how(model)
    run(other, torch.randn(6, 2, 3))
    assert "6 calls" in line_of(other) and "loop" not in line_of(model)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_traced_scripted_and_compiled():
    model, x = Loop(nn.GRUCell(3, 5)), torch.randn(4, 2, 3)
    wanted = model(x)
    bl.attach(model)
    assert torch.allclose(torch.jit.trace(model, x)(x), wanted)
    cell = torch.jit.script(model.cell)
    assert torch.allclose(cell(x[0]), wanted[0])
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x), wanted)
    run(model, x)
    assert "its last loop: 4 calls" in line_of(model)


def test_the_strategy_tells_of_them_after_fit():
    from support.helpers import Classifier, fit

    class Looped(Classifier):
        def __init__(self):
            super().__init__()
            self.rnn = Loop(nn.GRUCell(3, 6))

        def forward(self, x):
            return self.head(self.rnn(x.transpose(0, 1)).mean(0))

        def on_after_backward(self):
            """Nothing is scanned here."""

    model = fit("bppsa", Looped)
    assert "its last loop: 12 calls" in model.trainer.strategy.explanation
    assert "forward" not in model.rnn.cell.__dict__
