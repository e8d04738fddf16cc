"""What random cases do not reach: calls between transforms, dtypes, fallbacks, what is recorded."""

import pytest
import torch
from support.helpers import assert_close
from torch import nn
from torch.func import functional_call, grad, jvp, vjp, vmap
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import bppsa_lightning as bl
from bppsa_lightning import ops

T, B, I, H, V = 5, 2, 3, 4, 3


def tensor(*size, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, dtype=dtype, generator=generator) / 2


def weights(gates, dtype=torch.float64):
    return [tensor(*s, dtype=dtype) for s in ((gates * H, I), (gates * H, H), (gates * H,))]


@pytest.mark.parametrize("cell, gates", [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_a_pullback_is_transformed_after_its_own_transform_is_over(cell, gates):
    """A tangent of the cotangent, and one cotangent for each member."""
    w, b = weights(gates)[:2], weights(gates)[2]
    starts = (None,) * (2 if cell == "lstm" else 1)
    pull = vjp(
        lambda x, w_hh: getattr(ops, cell)(x, *starts, w[0], w_hh, b, b)[0], tensor(T, B, I), w[1]
    )[1]
    cotangents = tensor(V, T, B, H, seed=1)
    each = [pull(c) for c in cotangents]
    for found, wanted in zip(vmap(pull)(cotangents), zip(*each, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(wanted))
    value, tangent = jvp(pull, (cotangents[0],), (cotangents[1],))
    for found, wanted in zip((*value, *tangent), (*each[0], *each[1]), strict=True):
        torch.testing.assert_close(found, wanted)


def test_float32():
    w = weights(3, torch.float32)
    x = tensor(V, T, B, I, dtype=torch.float32)

    def loss(w_hh, x):
        return ops.gru(x, None, w[0], w_hh.to(x.dtype), w[2], w[2])[0].square().sum()

    found = vmap(grad(loss), (None, 0))(w[1], x)
    w = [t.double() for t in w]
    wanted = torch.stack([grad(loss)(w[1], each.double()) for each in x])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


def test_parameters_outside_of_a_transform_get_their_gradients():
    """A mapped call whose loss is differentiated by autograd as ever."""
    layer = nn.GRU(I, H).double()
    bl.attach(layer)
    x = tensor(V, T, B, I)
    found = []
    for run in (vmap, lambda f: lambda xs: torch.stack([f(x) for x in xs])):
        run(lambda x: layer(x)[0])(x).square().sum().backward()
        found.append({n: p.grad for n, p in layer.named_parameters()})
        layer.zero_grad(set_to_none=True)
    assert_close(*found, 1e-12)


def test_an_attached_layer_in_a_model_is_computed_by_the_operator():
    model = nn.ModuleDict(
        {"rnn": nn.LSTM(I, H, batch_first=True), "head": nn.Linear(H, 2)}
    ).double()
    [chain] = bl.attach(model)
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(parameters, x):
        rnn = {n[4:]: p for n, p in parameters.items() if n.startswith("rnn")}
        output, _ = functional_call(model["rnn"], rnn, (x[None],))
        return (output[0, -1] @ parameters["head.weight"].T + parameters["head.bias"]).sum()

    each = vmap(grad(loss), (None, 0))(parameters, tensor(V, T, I))
    assert (chain.calls, chain.fallback_calls, chain.reason) == (1, 0, None)
    together = grad(lambda p, x: vmap(loss, (None, 0))(p, x).sum())(parameters, tensor(V, T, I))
    assert_close({n: g.sum(0) for n, g in each.items()}, together, 1e-12)


def test_dropout_between_layers_is_random_as_vmap_says():
    layer = nn.RNN(I, H, num_layers=2, dropout=0.5).double()
    bl.attach(layer)
    x = tensor(T, B, I).expand(V, T, B, I)
    same = vmap(lambda x: layer(x)[0], randomness="same")(x)
    assert torch.equal(same[0], same[1])
    different = vmap(lambda x: layer(x)[0], randomness="different")(x)
    assert not torch.equal(different[0], different[1])


@pytest.mark.parametrize("options", [{"nonlinearity": "relu"}, {"nonlinearity": "tanh"}, {}])
def test_packed_sequences_of_mapped_data(options):
    """nn.LSTM without options. torch packs outside of vmap only: it has no rule for that."""
    kind = nn.RNN if options else nn.LSTM
    layer = kind(I, H, bidirectional=True, **options).double()
    parameters = dict(layer.named_parameters())
    stock = kind(I, H, bidirectional=True, **options).double()
    stock.load_state_dict(layer.state_dict())
    [chain] = bl.attach(layer)
    lengths = torch.tensor([2, T, 1])
    _, *sizes = pack_padded_sequence(tensor(T, 3, I), lengths, enforce_sorted=False)

    def loss(parameters, x, layer=layer):
        output, last = functional_call(layer, parameters, (PackedSequence(x, *sizes),))
        last = sum(t.pow(3).sum() for t in last) if kind is nn.LSTM else last.pow(3).sum()
        return output.data.square().sum() + last

    x = tensor(V, T + 3, I)
    found = vmap(grad(loss), (None, 0))(parameters, x)
    assert chain.calls and not chain.fallback_calls
    for v in range(V):
        loss(dict(stock.named_parameters()), x[v], stock).backward()
        wanted = {name: p.grad for name, p in stock.named_parameters()}
        assert_close({name: g[v].detach() for name, g in found.items()}, wanted, 1e-12)
        stock.zero_grad(set_to_none=True)


def test_a_mapped_scan_is_one_call(monkeypatch):
    """And not a loop of torch's own over the members."""
    jac_t, u = tensor(V, T, B, H, H), tensor(T + 1, B, H)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        vmap(lambda j: ops.reverse_scan(j, u))(jac_t)
    assert [e.count for e in profile.key_averages() if e.key == "bppsa::reverse_scan"] == [1]
