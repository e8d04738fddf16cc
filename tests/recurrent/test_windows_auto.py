"""algorithm="auto": windows of time where they pay, which nobody asked for."""

import copy

import pytest
import torch
from support.windows import assert_as_exact
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.planner import machine
from bppsa_lightning.recurrent.engines import LayerEngine

KINDS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
T, I, H = 6000, 2, 20


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """Whatever machine this is: plans are those of one that was measured, with two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setenv(machine.TABLE, "amd_epyc_2")
    machine.forget()
    yield
    torch.set_num_threads(threads)
    monkeypatch.undo()
    machine.forget()


def attached(kind, algorithm="auto", **options):
    torch.manual_seed(0)
    layer = KINDS[kind](I, H, **options)
    stock = copy.deepcopy(layer)
    [chain] = bl.attach(layer, algorithm)
    return chain, layer, stock


def results(layer, x, u):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y, _ = layer(x)
    y.backward(u)
    return [y.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_a_long_sequence_is_walked_in_windows(kind, options):
    chain, layer, stock = attached(kind, **options)
    x = torch.randn(T, 1, I)
    u = torch.rand(T, 1, H * (2 if options else 1))
    for _ in range(2):
        found, walk = results(layer, x, u), results(stock, x, u)
    assert chain.plan.algorithm == "speculative"
    assert "windows of" in bl.explain(layer)
    assert_as_exact(found, [walk], results(stock.double(), x.double(), u.double()), slack=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_first_called_in_inference_mode(kind):
    """As by a Trainer, which validates before it trains; batches are made in that mode, too."""
    chain, layer, stock = attached(kind)
    with torch.inference_mode():
        x = torch.randn(T, 1, I)
        for _ in range(2):
            torch.testing.assert_close(layer(x)[0], stock(x)[0])
        assert chain.plan.algorithm == "speculative"
    x, u = x.clone(), torch.rand(T, 1, H)
    found, walk = results(layer, x, u), results(stock, x, u)
    assert chain.plan.algorithm == "speculative"
    assert_as_exact(found, [walk], results(stock.double(), x.double(), u.double()), slack=2e-6)


def test_made_and_called_in_inference_mode():
    with torch.inference_mode():
        chain, layer, stock = attached("GRU")
        x = torch.randn(T, 1, I)
        torch.testing.assert_close(layer(x)[0], stock(x)[0])
    assert chain.plan.algorithm == "speculative"


@pytest.mark.parametrize("shape", [(300, 1, I), (T, 3, I), (T // 2, 64, I)])
def test_short_ones_and_batches_are_not(shape):
    chain, layer, _ = attached("GRU")
    layer(torch.randn(shape))[0].sum().backward()
    assert chain.plan.algorithm != "speculative"
    assert "windows" not in bl.explain(layer)
    assert not chain.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_none_is_asked_about_in_vain(kind):
    """What may be worth a look in each call must be worth windows, if the layer forgets at once."""
    for steps in range(500, 3000, 100):
        chain, layer, _ = attached(kind)
        layer(torch.zeros(steps, 1, I))
        for memory in chain._windows._memories.values():
            assert memory.reason != f"{steps} steps are too few for windows"


def test_another_algorithm_is_obeyed():
    chain, layer, _ = attached("GRU", "linear")
    layer(torch.randn(T, 1, I))
    assert chain.plan.algorithm == "linear"


def test_a_layer_that_remembers_is_walked_and_rests():
    chain, layer, stock = attached("RNN", nonlinearity="relu")
    with torch.no_grad():
        for of in (layer, stock):
            of.weight_hh_l0.copy_(torch.eye(H))
            of.bias_hh_l0.zero_()
    x = torch.randn(T, 1, I) / T
    for _ in range(4):
        torch.testing.assert_close(layer(x)[0], stock(x)[0], rtol=1e-4, atol=1e-5)
        assert chain.plan.algorithm != "speculative"
    assert "it remembers more than" in bl.explain(layer)
    [memory] = chain._windows._memories.values()
    assert memory.calls == 4 and memory._rest > 0


def test_sequences_too_short_for_its_warm_up_are_walked_without_being_asked_about_again():
    chain, layer, _ = attached("GRU")
    layer(torch.randn(T, 1, I))
    [memory] = chain._windows._memories.values()
    memory.warm = T  # as if it remembered for longer than it does
    for _ in range(3):
        layer(torch.randn(T, 1, I))
        assert chain.plan.algorithm != "speculative"
    assert f"{T} steps are too few for windows that warm up for {T}" in bl.explain(layer)
    calls, asked = memory.calls, memory._chosen
    memory._chosen = None  # which nobody reads
    layer(torch.randn(T, 1, I))
    layer(torch.randn(T - 5, 1, I))
    assert memory.calls == calls + 2
    again, other, _ = attached("GRU")
    again.load_state_dict(chain.state_dict())
    other(torch.randn(T, 1, I))  # loads it
    [resumed] = again._windows._memories.values()
    assert resumed.rests(T) and not resumed.rests(T + 1)
    memory._chosen, memory._rest, memory.warm = asked, 0, None
    layer(torch.randn(T, 1, I))
    assert chain.plan.algorithm == "speculative"


def test_a_loss_of_the_end_alone_is_a_shorter_walk():
    """Its backward ends early, so that windows have less to gain."""
    chain, layer, _ = attached("GRU", "speculative")
    x = torch.randn(T, 1, I)
    for loss, silent in (
        (lambda y, h: y.sum(), False), (lambda y, h: y[-1].sum(), True),
        (lambda y, h: h.sum(), True), (lambda y, h: (y[-1] + y[0]).sum(), False),
    ):  # fmt: skip
        loss(*layer(x)).backward()
        layer(x)  # learns of it
        [memory] = chain._windows._memories.values()
        assert memory.silent == silent
        assert memory.state_dict()["silent"] == silent
    engine = LayerEngine("gru", list(layer.parameters()))
    cut, of_silent = (
        [memory._choose(engine, steps, 1, 300, False, silent) for steps in range(2000, 8000, 50)]
        for silent in (False, True)
    )
    assert None in cut and cut != of_silent
    assert all(c is not None or s is None for c, s in zip(cut, of_silent, strict=True))


def test_where_pytorch_is_faster_it_walks_what_windows_do_not(monkeypatch):
    """An LSTM of 512 units is PyTorch's on some machines, unless windows pay."""
    ask = planner.fallback_reason
    monkeypatch.setattr(
        planner, "fallback_reason", lambda r: "for the test" if r.B == 1 else ask(r)
    )
    torch.manual_seed(0)
    layer = nn.LSTM(1, 512)
    with torch.no_grad():
        layer.bias_hh_l0[512:1024] = 20.0  # its forget gates are open: it remembers
    stock = copy.deepcopy(layer)
    [chain] = bl.attach(layer, "auto")
    x = torch.randn(700, 1, 1)
    for _ in range(2):
        y, (h, c) = layer(x)
        wanted, (h_n, c_n) = stock(x)
        torch.testing.assert_close((y, h, c), (wanted, h_n, c_n))
    assert chain.fallback_calls == 1  # the second: the first looked
    y.sum().backward()


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_are_those_of_the_walk(kind, batch):
    torch.manual_seed(0)
    layer = KINDS[kind](I, 4)
    stock = copy.deepcopy(layer)
    bl.attach(layer, "speculative")
    x = torch.randn(600, batch, I)
    found = []
    for of in (layer, stock):
        leaf = x.clone().requires_grad_()
        y, _ = of(leaf)
        (g,) = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), [leaf, *of.parameters()]))
    assert "windows of" in bl.explain(layer)
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_what_it_has_learned_is_saved():
    chain, layer, _ = attached("GRU")
    layer(torch.randn(T, 1, I))[0].sum().backward()
    state = chain.state_dict()
    assert state["0"]["warm"] > 0
    other, again, _ = attached("GRU")
    other.load_state_dict(state)
    x = torch.randn(T, 1, I)
    assert torch.equal(again(x)[0], layer(x)[0])
    assert other._windows._memories[0].warm == state["0"]["warm"]
