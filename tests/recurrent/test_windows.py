"""algorithm="speculative": recurrent layers in windows of time, in all their options."""

import copy
import random

import pytest
import torch
from support.windows import assert_as_exact, leaves, run
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import bppsa_lightning as bl
from bppsa_lightning import windows
from bppsa_lightning.recurrent.engines import LayerEngine, PytorchEngine
from bppsa_lightning.windows import Cut, Report, look, speculate

KINDS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}


def grads(layer, x, weigh):
    y, last = layer(x)
    data = y if isinstance(y, torch.Tensor) else y.data
    (data * weigh(data)).sum().backward()
    return [data.detach(), *(p.grad for p in layer.parameters())]


def windows_of(layer):
    return [line for line in bl.explain(layer).splitlines() if " windows of " in line]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bidirectional": True, "num_layers": 2, "batch_first": True},
        {"bias": False, "num_layers": 2},
        {"proj_size": 5},
        {"nonlinearity": "relu"},
    ],
    ids=lambda o: "-".join(o) or "plain",
)
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_options(kind, options, packed):
    if ("proj_size" in options and kind != "LSTM") or ("nonlinearity" in options and kind != "RNN"):
        pytest.skip("no such option")
    torch.manual_seed(0)
    layer = KINDS[kind](3, 12, **options)
    stock, true = copy.deepcopy(layer), copy.deepcopy(layer).double()
    bl.attach(layer, "speculative")
    if packed:
        parts = [torch.randn(n, 3) for n in (900, 1200, 1000)]
        x = pack_sequence(parts, enforce_sorted=False)
        wide = pack_sequence([p.double() for p in parts], enforce_sorted=False)
    else:
        x = torch.randn(*((2, 1200) if "batch_first" in options else (1200, 2)), 3)
        wide = x.double()
    weights = torch.rand(stock(x)[0].data.shape)
    weigh = lambda y: weights.to(y.dtype)  # noqa: E731
    found, walk = grads(layer, x, weigh), grads(stock, x, weigh)
    exact = grads(true, wide, weigh)
    # (An LSTM's c stands still behind the end of a shorter sequence: it forgets nothing there.)
    scans = 0 if packed and kind == "LSTM" else layer.num_layers * (2 if layer.bidirectional else 1)
    assert len(windows_of(layer)) == scans
    assert_as_exact(found, [walk], exact, slack=2e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    torch.manual_seed(0)
    layer = nn.GRU(3, 12).to(dtype)
    stock = copy.deepcopy(layer)
    bl.attach(layer, "speculative")
    x = torch.randn(2000, 2, 3).to(dtype)
    y, h = layer(x)
    assert windows_of(layer)
    assert y.dtype == h.dtype == dtype
    near = 1e-10 if dtype == torch.float64 else 0.03
    torch.testing.assert_close(y, stock(x)[0], rtol=near, atol=near)


def test_initial_states_and_their_gradients():
    torch.manual_seed(0)
    layer = nn.LSTM(3, 12)
    stock = copy.deepcopy(layer)
    bl.attach(layer, "speculative")
    x, found = torch.randn(1200, 2, 3), []
    for module in (layer, stock):
        h, c = leaves((torch.randn(1, 2, 12, generator=torch.manual_seed(1)),) * 2)
        y, (h_n, c_n) = module(x, (h, c))
        (y.square().sum() + h_n.sum() + c_n.sum()).backward()
        found.append((h.grad, c.grad, h_n, c_n))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_short_sequences_are_walked():
    layer = nn.GRU(3, 12)
    stock = copy.deepcopy(layer)
    bl.attach(layer, "speculative")
    for T, B in ((1, 1), (2, 3), (30, 2), (5, 0)):
        x = torch.randn(T, B, 3)
        torch.testing.assert_close(layer(x)[0], stock(x)[0])
        assert not windows_of(layer)


def test_what_remembers_is_walked_and_explain_says_so():
    layer = nn.LSTM(3, 12)
    with torch.no_grad():
        layer.bias_ih_l0[12:24] += 20  # forget gates that never close
    bl.attach(layer, "speculative")
    x = torch.randn(400, 2, 3)
    layer(x)
    assert "walked: it remembers more than 50 steps" in bl.explain(layer)


def test_what_short_sequences_could_not_show_is_looked_for_again_in_longer_ones():
    torch.manual_seed(0)
    layer = nn.GRU(3, 12)
    [chain] = bl.attach(layer, "speculative")
    layer(torch.randn(160, 2, 3))
    [memory] = chain._windows._memories.values()
    assert "walked: it remembers more than 20 steps" in bl.explain(layer)
    rests = memory._rest
    layer(torch.randn(319, 2, 3))  # not twice as many
    assert memory.warm is None and memory._rest == rests - 1 > 0
    loaded = type(memory)()
    loaded.load_state_dict(memory.state_dict(), torch.device("cpu"))
    assert loaded.rests(319) and not loaded.rests(320)
    for _ in range(3):
        layer(torch.randn(2000, 2, 3))
    assert memory.windowed == 3 and memory._rest > rests, "looked once"


def test_what_was_learned_is_saved_and_loaded():
    torch.manual_seed(0)
    layer = nn.GRU(3, 12)
    [chain] = bl.attach(layer, "speculative")
    x = torch.randn(1200, 2, 3)
    layer(x)
    other = copy.deepcopy(layer)
    bl.detach(other)
    [loaded] = bl.attach(other, "speculative")
    loaded.load_state_dict(chain.state_dict())
    for _ in range(3):
        assert torch.equal(layer(x)[0], other(x)[0])
    assert loaded.state_dict()["0"]["rest"] == chain.state_dict()["0"]["rest"] < 63


def test_detached_it_is_stock():
    layer = nn.GRU(3, 12)
    x = torch.randn(500, 2, 3)
    y = layer(x)[0]
    bl.attach(layer, "speculative")
    bl.detach(layer)
    assert torch.equal(layer(x)[0], y)


def test_unknown_algorithms_are_named():
    with pytest.raises(ValueError, match="wanted one of auto, linear, chunked, blelloch, specul"):
        bl.attach(nn.GRU(3, 12), "windows")


class Walk:
    """A layer as a step-like thing for `run`: an engine, and how it is walked."""

    def __init__(self, engine, cut=None, seen=None):
        self.engine, self.cut, self.seen = engine, cut, seen

    def parameters(self):
        return self.engine.tensors

    def __call__(self, _, init, xs):
        if self.cut is None:
            [y], last = self.engine([xs], list(init))
        else:
            levels = self.seen.levels
            [y], last = speculate(self.engine, [xs], list(init), self.cut, levels, Report())
        return tuple(last), y


@pytest.mark.parametrize("call", [0, 30, 1000])
@pytest.mark.parametrize("kind", [LayerEngine, PytorchEngine])
def test_pieces_are_as_long_as_calls_cost(kind, call, monkeypatch):
    """Whatever they are, the results are the walk's."""
    torch.manual_seed(0)
    weights = [w.detach() for w in nn.LSTM(3, 12).parameters()]
    init, x = leaves((torch.randn(3, 12),) * 2), leaves(torch.randn(1200, 3, 3))

    class Kind(kind):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.call = call * self.cost(1)

    pieces, forward = [], windows.forward._followed
    monkeypatch.setattr(
        windows.forward, "_followed", lambda *a: pieces.append(forward(*a)) or pieces[-1]
    )

    def results(cut=None, dtype=torch.float32):
        own = [w.detach().to(dtype).requires_grad_() for w in weights]
        engine = Kind("lstm", own)
        seen = look(engine, [x.detach()], [s.detach() for s in init], 150) if cut else None
        walk = Walk(engine, cut, seen)
        return run(walk, walk, *leaves((init, x), dtype))

    found = results(Cut(1200, 4, 300, 60))
    assert pieces == [{0: [60, 120, 60, 60], 30: [180, 60, 60], 1000: [180, 120]}[call]]
    assert_as_exact(found, [results()], results(dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(80))
def test_random_layers(seed):
    """Cells, sizes, gains and losses; windows cut as a look says, or blindly."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    cell = r.choice(["gru", "lstm", "rnn_tanh", "rnn_relu"])
    H, B, T = r.choice([1, 3, 8, 20, 64]), r.randint(1, 8), int(2 ** r.uniform(5, 11))
    gates, bound = {"gru": 3, "lstm": 4}.get(cell, 1), H**-0.5
    gain = r.uniform(0.1, 3) if seed % 2 else 1.0
    shapes = (gates * H, 3), (gates * H, H), (gates * H,), (gates * H,)
    weights = [torch.empty(s).uniform_(-bound, bound) for s in shapes]
    weights[1] *= gain
    if cell == "lstm" and r.random() < 0.4:
        weights[2][H : 2 * H] += r.choice([1, 3, 10])
    weights = [w.requires_grad_() for w in weights]
    init = leaves(tuple(torch.randn(B, H) for _ in range(1 + (cell == "lstm"))))
    x = torch.randn(T, B, 3)
    if r.random() < 0.3:
        x[T // 4 : T // 2] = 0
    x = leaves(x)
    kind, other = r.sample([LayerEngine, PytorchEngine], 2)
    seen = look(kind(cell, weights), [x.detach()], [s.detach() for s in init], max(T // 6, 16))
    warm = seen.warm if seen.warm and r.random() < 0.8 else r.choice([1, 4, 16])
    windows = max(2, min(r.choice([2, 3, 8, 16, 32]), T // warm))
    cut = Cut(T, windows, T // windows, min(warm, T // windows))
    sparse = (torch.rand(T, 1, 1) < 0.02) if r.random() < 0.3 else torch.ones(T, 1, 1)
    weigh = lambda w: w * sparse.to(w.dtype)  # noqa: E731

    def results(engine, cut=None, dtype=None):
        own = [w.detach().to(dtype or w.dtype).requires_grad_() for w in weights]
        walk = Walk(engine(cell, own), cut, seen)
        return run(walk, walk, *leaves((init, x), dtype), weigh)

    true = results(LayerEngine, dtype=torch.float64)
    walks = [results(kind), results(other)]
    assert_as_exact(results(kind, cut), walks, true, slack=1e-6)
