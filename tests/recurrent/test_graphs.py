"""torch.compile(fullgraph=True) of attached layers: one graph, without a switch of the user's."""

import copy
import threading

import pytest
import torch
from support.recurrent_modules import CELLS, EXACT, Summed, assert_close, tensor
from torch import nn
from torch._dynamo.variables.builder import VariableBuilder
from torch.nn.utils.rnn import pack_sequence

import bppsa_lightning as bl
from bppsa_lightning.recurrent import graphs

Unsupported = torch._dynamo.exc.Unsupported


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    assert torch._dynamo.config.allow_rnn is False
    yield
    assert torch._dynamo.config.allow_rnn is False


def pair(cell="LSTM", **options):
    """A model of PyTorch's, and an equal one that is attached."""
    kind, settings = CELLS[cell]
    torch.manual_seed(1)
    stock = Summed(kind(3, 4, **options, **settings).double())
    ours = copy.deepcopy(stock)
    bl.attach(ours)
    return stock, ours


def compiled(model, fullgraph=True, dynamic=None):
    """A model compiled, and the targets of the nodes of each of its graphs."""
    found = []

    def backend(graph, inputs):
        found.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    return torch.compile(model, fullgraph=fullgraph, dynamic=dynamic, backend=backend), found


def results(model, call, *arguments):
    """Of a call: its result and all gradients."""
    model.zero_grad()
    loss = call(*arguments)
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach()} | gradients


def nodes(targets):
    return [target for target in targets if "bppsa" in target]


@pytest.mark.parametrize("cell", CELLS)
def test_one_graph_with_a_node_for_each_direction_of_each_layer(cell):
    stock, ours = pair(cell, num_layers=2, bidirectional=True, batch_first=True, dropout=1.0)
    call, found = compiled(ours)
    x = tensor(5, 6, 3)
    assert_close(results(ours, call, x), results(stock, stock, x), EXACT)
    (graph,) = found
    assert nodes(graph) == ["bppsa.recurrent"] * 4
    assert "was part of a graph of torch.compile" in bl.explain(ours)
    assert ours.layer.forward.shape == (6, 5, 4)


def test_backward_is_planned_when_it_runs_and_logged():
    """Plans made of symbols would be one for the sizes of the first call, and a graph for each."""
    stock, ours = pair("GRU")
    call = torch.compile(ours, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True), bl.ops.scan_log() as log:
        for T, B in ((7, 5), (9, 5), (13, 8)):
            x = tensor(T, B, 3)
            assert_close(results(ours, call, x), results(stock, stock, x), EXACT)
    assert [shape for _, shape, _ in log.scans] == [(7, 5, 4), (9, 5, 4), (13, 8, 4)]


def test_inference_keeps_nothing():
    stock, ours = pair("LSTM")
    call, found = compiled(ours.eval())
    with torch.no_grad():
        assert_close({"": call(tensor(6, 3, 3))}, {"": stock(tensor(6, 3, 3))}, EXACT)
    assert nodes(found[0]) == ["bppsa.recurrent"]


def test_states_frozen_weights_and_autocast():
    torch.manual_seed(0)
    stock = Summed(nn.LSTM(3, 4, 2))
    stock.layer.weight_hh_l0.requires_grad_(False)
    ours = copy.deepcopy(stock)
    bl.attach(ours)
    call = torch.compile(ours, fullgraph=True, backend="aot_eager")
    x, hx = torch.randn(6, 5, 3), (torch.randn(2, 5, 4), torch.randn(2, 5, 4))
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found = results(ours, call, x, hx)
            wanted = results(ours, ours, x, hx)  # by the operator as well, whose rounding is known
            assert_close(found, wanted, 1e-6)
    assert "layer.weight_hh_l0" not in found


class Two(nn.Module):
    """Two recurrent layers in a row."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.GRU(3, 4).double(), nn.LSTM(4, 4).double()

    def forward(self, x):
        x = self.one(x * 2)[0].sin()
        return self.two(x)[0].square().sum()


def test_layers_that_are_not_attached_stay_beside_the_graph():
    torch.manual_seed(1)
    stock = Two()
    ours = copy.deepcopy(stock)
    bl.attach(ours.one)
    x = tensor(6, 5, 3)
    with pytest.raises(Unsupported, match=r"(?s)RNN, GRU, or LSTM.*LSTM"):
        compiled(ours)[0](x)
    torch._dynamo.reset()
    call, found = compiled(ours, fullgraph=False)
    assert_close(results(ours, call, x), results(stock, stock, x), EXACT)
    assert sum(map(nodes, found), []) == ["bppsa.recurrent"]
    assert not any("lstm" in target for graph in found for target in graph)


def test_a_user_who_turned_the_switch_on_keeps_it():
    with torch._dynamo.config.patch(allow_rnn=True):
        ours = Two()
        bl.attach(ours.one)
        call, found = compiled(ours)
        call(tensor(6, 5, 3))
        assert torch._dynamo.config.allow_rnn is True
    (graph,) = found
    assert nodes(graph) == ["bppsa.recurrent"] and any("lstm" in target for target in graph)


def test_other_threads_and_errors_leave_the_switch_alone():
    """Two threads compile at once: an attached model, and one that is not."""
    _, ours = pair("GRU")
    stock, _ = pair("GRU")
    ended = {}

    def work(name, model):
        try:
            for T in range(4, 8):
                compiled(copy.deepcopy(model))[0](tensor(T, 2, 3))
            ended[name] = None
        except Unsupported as error:
            ended[name] = str(error)

    threads = [
        threading.Thread(target=work, args=pair) for pair in (("ours", ours), ("stock", stock))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended["ours"] is None and "RNN, GRU, or LSTM" in ended["stock"]


def test_detached_it_is_as_it_was():
    stock, ours = pair("LSTM")
    call, found = compiled(ours, fullgraph=False)
    x = tensor(6, 5, 3)
    call(x)
    assert nodes(found[0])
    del found[:]
    bl.detach(ours)
    after = results(ours, call, x)
    wanted = results(stock, stock, x)
    assert all(torch.equal(after[name], wanted[name]) for name in wanted)
    assert not any("bppsa" in t or "lstm" in t for graph in found for t in graph)
    bl.attach(ours)
    assert_close(results(ours, call, x), wanted, EXACT)
    torch._dynamo.reset()
    bl.detach(ours)
    with pytest.raises(Unsupported, match="RNN, GRU, or LSTM"):
        compiled(ours)[0](x)


def test_a_shallow_copy_is_not_what_is_attached():
    _, ours = pair("LSTM")
    ours.layer = copy.copy(ours.layer)
    with pytest.raises(Unsupported, match="RNN, GRU, or LSTM"):
        compiled(ours)[0](tensor(6, 5, 3))


@pytest.mark.parametrize(
    "prepare, reason",
    [
        (lambda m: bl.attach(m, "speculative"), "windows of time look at values"),
        (lambda m: setattr(m.layer.forward, "divided", object()), "divided over ranks"),
    ],
    ids=["windows", "ranks"],
)
def test_what_cannot_be_in_a_graph_says_so(prepare, reason, monkeypatch):
    _, ours = pair("GRU")
    prepare(ours)
    with pytest.raises(Unsupported, match="RNN, GRU, or LSTM"):
        compiled(ours)[0](tensor(6, 5, 3))
    assert graphs.details(ours.layer.forward)[0].startswith("torch.compile breaks its graph here")
    assert reason in graphs.details(ours.layer.forward)[0]


def test_calls_that_pytorch_computes_break_the_graph_and_say_why():
    """As PyTorch's layers in a graph would be unrolled."""
    stock, ours = pair("LSTM")
    x = tensor(6, 5, 3)
    with pytest.raises(Unsupported, match=r"(?s)left to PyTorch: dtypes of input, state"):
        compiled(ours)[0](x.float())
    torch._dynamo.reset()
    packed = pack_sequence([tensor(4, 3), tensor(3, 3)])
    call, found = compiled(OfPacked(ours.layer), fullgraph=False)
    assert_close({"": call(packed).detach()}, {"": stock.layer(packed)[0].data.detach()}, EXACT)
    chain = ours.layer.forward
    assert chain.calls + chain.fallback_calls == 1 and not chain.compiled  # beside a graph
    assert not any("bppsa" in t or "lstm" in t for graph in found for t in graph)
    torch._dynamo.reset()
    with pytest.raises(Unsupported, match="left to PyTorch: a PackedSequence"):
        compiled(OfPacked(ours.layer))[0](packed)


class OfPacked(nn.Module):
    """A model that is given a PackedSequence."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, packed):
        return self.layer(packed)[0].data


def test_a_torch_that_lets_nothing_in(monkeypatch):
    monkeypatch.setattr(graphs, "tell", lambda: False)
    stock, ours = pair("GRU")
    with pytest.raises(Unsupported, match="RNN, GRU, or LSTM"):
        compiled(ours)[0](tensor(6, 5, 3))
    call, found = compiled(ours, fullgraph=False)
    x = tensor(6, 5, 3)
    assert_close(results(ours, call, x), results(stock, stock, x), EXACT)
    assert ours.layer.forward.calls == 1 and not sum(map(nodes, found), [])
    assert "lets no recurrent layer into a graph" in bl.explain(ours)


def test_dynamo_is_not_told_where_it_has_other_names(monkeypatch):
    with monkeypatch.context() as patch:
        patch.delattr(VariableBuilder, "wrap_module")
        assert graphs.tell.__wrapped__() is False
    assert graphs.tell() is True


class Doubled(nn.GRU):
    """A subclass with a forward of its own."""

    def forward(self, x, hx=None):
        output, states = super().forward(2 * x, hx)
        return output + 1, states


@pytest.mark.parametrize("normed", [False, True])
def test_a_class_that_overrides_forward(normed):
    torch.manual_seed(1)
    stock = Summed(Doubled(3, 4).double())
    ours = copy.deepcopy(stock)
    bl.attach(ours)
    if normed:
        for model in (stock, ours):
            nn.utils.parametrizations.weight_norm(model.layer, "weight_hh_l0")
    call, found = compiled(ours)
    x = tensor(6, 5, 3)
    assert_close(results(ours, call, x), results(stock, stock, x), EXACT)
    assert nodes(found[0]) == ["bppsa.recurrent"]


@pytest.mark.slow
def test_inductor():
    stock, ours = pair("LSTM", num_layers=2)
    call = torch.compile(ours, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for T, B in ((7, 5), (9, 6)):
            x = tensor(T, B, 3)
            assert_close(results(ours, call, x), results(stock, stock, x), EXACT)
