"""Windows of time over the recurrent kernels of csrc/cuda, run thread by thread on the host.

Letters: T steps, B batch, I input, H state.
"""

import pytest
import torch
from support.emulated_recurrent import Case, emulate
from support.emulation import compiled, needs_gxx
from support.windows import assert_as_exact, leaves, run
from torch import nn

from bppsa_lightning.recurrent.engines import LayerEngine
from bppsa_lightning.windows import Cut, Report, look, speculate

pytestmark = needs_gxx
CELLS = {"rnn_tanh": nn.RNN, "rnn_relu": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
NAMES = ("x", "h0", "c0", "w_ih", "w_hh", "b_ih", "b_hh", "w_hr")


@pytest.fixture(scope="module")
def library():
    return compiled("recurrent")


class Emulated(torch.autograd.Function):
    """One layer by the emulated kernels: the forward, and again with what its backward is given."""

    @staticmethod
    def forward(ctx, library, cell, *tensors):
        ctx.library, ctx.cell = library, cell
        ctx.save_for_backward(*tensors)
        zeros = torch.zeros_like(tensors[1])
        found = Emulated.run(library, cell, tensors, {"h_n": zeros})
        states = [found["h_n"], *([found["c_n"]] if cell == "lstm" else [])]
        return found["output"], *states

    @staticmethod
    def backward(ctx, *gradients):
        incoming = {
            name: g.contiguous()
            for name, g in zip(("output", "h_n", "c_n"), gradients, strict=False)
            if g is not None
        }
        found = Emulated.run(ctx.library, ctx.cell, ctx.saved_tensors, incoming)
        names = (n for n, t in zip(NAMES, ctx.saved_tensors, strict=True) if t is not None)
        each = [found[f"grad_{name}"] for name in names]
        given = iter(each)
        return None, None, *(None if t is None else next(given) for t in ctx.saved_tensors)

    @staticmethod
    def run(library, cell, tensors, incoming):
        named = {n: t.detach() for n, t in zip(NAMES, tensors, strict=True) if t is not None}
        named = {n: t if n == "x" else t.contiguous() for n, t in named.items()}
        case = Case(cell, False, named, incoming)
        return emulate(library, case, next(iter(named.values())).dtype).found


class EmulatedEngine(LayerEngine):
    """The kernels of a GPU; a call costs as much as there."""

    call = 1000.0
    library = None

    def __call__(self, xs, state):
        h0, c0 = (*state, None)[:2]
        output, *last = Emulated.apply(self.library, self.cell, xs[0], h0, c0, *self.weights)
        return [output], last


class Walk:
    """An engine as a step for `run`: walked as it is, or in windows."""

    def __init__(self, engine, cut=None, levels=None):
        self.engine, self.cut, self.levels, self.report = engine, cut, levels, Report()

    def parameters(self):
        return self.engine.tensors

    def __call__(self, _, init, xs):
        if self.cut is None:
            [y], last = self.engine([xs], list(init))
        else:
            [y], last = speculate(self.engine, [xs], list(init), self.cut, self.levels, self.report)
        return tuple(last), y


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("warm", [40, 3])
@pytest.mark.parametrize("proj_size", [0, 3])
def test_windows_are_as_exact_as_walks(cell, warm, proj_size, library, monkeypatch):
    """They meet, or are repaired: either in windows of 100 steps, and after a head of one."""
    if proj_size and cell != "lstm":
        pytest.skip("no such option")
    monkeypatch.setattr(EmulatedEngine, "library", library)
    torch.manual_seed(0)
    more = {"proj_size": proj_size} if proj_size else {}
    more |= {"nonlinearity": "relu"} if cell == "rnn_relu" else {}
    w_ih, w_hh, b_ih, b_hh, *w_hr = [p.detach() for p in CELLS[cell](2, 5, **more).parameters()]
    weights = [w_ih, 0.5 * w_hh, b_ih, b_hh, *w_hr]
    x = torch.randn(401, 2, 2)
    init = [torch.randn(2, proj_size or 5), *([torch.randn(2, 5)] if cell == "lstm" else [])]
    cut = Cut(401, 4, 100, warm)
    levels = look(LayerEngine(cell, weights), [x], init, 100).levels

    def results(kind, cut=None, dtype=torch.float32):
        own = [w.detach().to(dtype).requires_grad_() for w in weights]
        walk = Walk(kind(cell, own), cut, levels)
        return run(walk, walk, *leaves((tuple(init), x), dtype)), walk.report

    found, report = results(EmulatedEngine, cut)
    assert (report.missed == 0) == (warm == 40)
    walks = [results(kind)[0] for kind in (EmulatedEngine, LayerEngine)]
    assert_as_exact(found, walks, results(LayerEngine, dtype=torch.float64)[0], slack=2e-6)
