"""Steps that no gradient reaches are passed over: a loss that reads few of many steps."""

import copy
import functools
import itertools

import pytest
import torch
from support.recurrent_layers import ALGORITHMS, CELLS, cotangents, draw, ours, stock
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import bppsa_lightning as bl
from bppsa_lightning import planner

T = 600
READ = {
    "the last": [T - 1],
    "two far apart": [T - 1, 100],
    "the first": [0],
    "one in the middle": [300],
    "none": [],
}
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def gradients(layer, x, steps, through_state=False):
    x = x.detach().requires_grad_()
    layer.zero_grad()
    y, last = layer(x)
    mask = torch.zeros(len(x), 1, 1, dtype=x.dtype)
    mask[steps] = 1
    weights = torch.linspace(0.5, 1, y.shape[-1], dtype=x.dtype)
    loss = (y * mask * weights).sum()
    if through_state:
        loss = loss + (last[0] if isinstance(last, tuple) else last).sum()
    loss.backward()
    return [x.grad, *(p.grad.clone() for p in layer.parameters())]


@functools.cache
def layer_and_exact_gradients(kind, B, I, **options):
    """A layer of PyTorch's, its input, and for each of READ its gradients in float64."""
    torch.manual_seed(0)
    layer = kind(I, 7, **options)
    true, x = copy.deepcopy(layer).double(), torch.randn(T, B, I)
    return layer, x, [gradients(true, x.double(), read, len(read) == 2) for read in READ.values()]


@pytest.mark.parametrize(
    "kind, options",
    [(nn.RNN, {}), (nn.GRU, {}), (nn.LSTM, {}), (nn.LSTM, {"proj_size": 3})],
    ids=["RNN", "GRU", "LSTM", "LSTM-projected"],
)
@pytest.mark.parametrize("B, I", [(1, 2), (2, 5), (17, 2)])
@each_algorithm
def test_gradients_are_those_of_all_steps(kind, options, B, I, algorithm, threads, monkeypatch):
    stock, x, exact = layer_and_exact_gradients(kind, B, I, **options)
    layer = copy.deepcopy(stock)
    bl.attach(layer, algorithm)
    ways = [saved for saved in planner.Saved if saved != planner.Saved.NOTHING]
    for saved, count in itertools.product(ways, (1, 2, 3)):
        monkeypatch.setattr("bppsa_lightning.planner.choose.saved", lambda _, s=saved: s)
        planner.choose._plan.cache_clear()
        threads(count)
        for read, wanted in zip(READ.values(), exact, strict=True):
            found = gradients(layer, x, read, through_state=len(read) == 2)
            for a, b in zip(found, wanted, strict=True):
                assert (a.double() - b).abs().max() <= 3e-6 * b.abs().max() + 1e-37
    planner.choose._plan.cache_clear()


@each_algorithm
def test_steps_that_no_gradient_reaches_have_zeros_and_cost_no_nan(algorithm):
    """Memory that nobody wrote would show: results are allocated, not cleared."""
    torch.manual_seed(0)
    layer = nn.GRU(2, 7)
    bl.attach(layer, algorithm)
    x = torch.randn(T, 4, 2)
    for _ in range(3):
        poison = [torch.full((T, 4, 2), float("nan")) for _ in range(8)]
        del poison
        found = gradients(layer, x, [T - 1])[0]
        assert (found[-1] != 0).all()
        assert (found[: T - 400] == 0).all()


@each_algorithm
def test_a_gradient_that_never_fades_reaches_all_steps(algorithm):
    layer = nn.RNN(1, 1, nonlinearity="relu", bias=False)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(1.0)
    bl.attach(layer, algorithm)
    found = gradients(layer, torch.ones(T, 2, 1), [T - 1])[0]
    assert torch.equal(found, torch.full((T, 2, 1), 0.5))


ENTRIES = {  # steps at which a gradient enters, of 500
    "the last": [499],
    "one in the middle": [200],
    "again and again": [499, *range(330, 340), 120, 0],
}


def entering(cell, B, gain, entries, dtype):
    """Operands over 500 steps, the same numbers in every dtype, and a gradient that enters."""
    tensors = draw(cell, (500, B, 2, 6), dtype, gain=gain)
    incoming = cotangents(cell, tensors, ["output"])["output"]
    silent = torch.ones(500, dtype=torch.bool)
    silent[ENTRIES[entries]] = False
    incoming[silent] = 0
    return {name: t.requires_grad_() for name, t in tensors.items()}, incoming


@functools.cache
def exact_gradients(name, B, gain, entries):
    cell = CELLS[name]
    leaves, incoming = entering(cell, B, gain, entries, torch.float64)
    return torch.autograd.grad(stock(cell, leaves)["output"], leaves.values(), incoming)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("gain", [0.1, 0.7])
@pytest.mark.parametrize("entries", ENTRIES)
@each_algorithm
def test_where_gradients_enter_and_fade(cell, dtype, B, gain, entries, algorithm):
    wanted = exact_gradients(cell, B, gain, entries)
    leaves, incoming = entering(CELLS[cell], B, gain, entries, dtype)
    output = ours(CELLS[cell], leaves, algorithm)["output"]
    found = torch.autograd.grad(output, leaves.values(), incoming)
    scale = max(b.abs().max() for b in wanted)
    for name, a, b in zip(leaves, found, wanted, strict=True):
        error = (a.double() - b).abs().max()
        assert error <= (2e-5 if dtype is torch.float32 else 1e-11) * scale, name
    assert not found[0][max(ENTRIES[entries]) + 1 :].any()


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@each_algorithm
def test_an_infinite_input_that_no_gradient_reaches_is_multiplied_by_none(kind, algorithm):
    """Steps that are walked would show: theirs is a product of zeros with the input."""
    torch.manual_seed(0)
    layer = kind(2, 7)
    bl.attach(layer, algorithm)
    x = torch.randn(3000, 2, 2)
    x[5, 0, 1] = torch.inf
    for found in gradients(layer, x, [2999]):
        assert found.isfinite().all()
    assert not all(found.isfinite().all() for found in gradients(layer, x, [2999, 6]))


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
@pytest.mark.parametrize("size", [torch.nan, torch.inf])
@each_algorithm
def test_a_gradient_that_is_no_number_never_fades(cell, size, algorithm):
    tensors = draw(cell, (300, 2, 2, 6), gain=0.3)
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    incoming = torch.zeros(300, 2, tensors["w_hh"].shape[1], dtype=torch.float64)
    incoming[-1, 0] = size
    found, wanted = (
        torch.autograd.grad(way(cell, tensors, *more)["output"], leaves.values(), incoming)
        for way, more in ((ours, [algorithm]), (stock, []))
    )
    for name, a, b in zip(leaves, found, wanted, strict=True):
        assert torch.equal(a.isfinite(), b.isfinite()), name


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@each_algorithm
def test_packed_sequences_whose_last_states_are_read(kind, algorithm):
    torch.manual_seed(0)
    layer, true = kind(2, 7), kind(2, 7).double()
    true.load_state_dict(layer.state_dict())
    bl.attach(layer, algorithm)
    x, lengths = torch.randn(900, 3, 2), [900, 500, 20]
    found = []
    for of, values in ((layer, x), (true, x.double())):
        values.requires_grad_()
        last = of(pack_padded_sequence(values, lengths))[1]
        (last[0] if kind is nn.LSTM else last).sum().backward()
        found.append([values.grad, *(p.grad for p in of.parameters())])
    for a, b in zip(*found, strict=True):
        assert (a.double() - b).abs().max() <= 3e-6 * b.abs().max() + 1e-37
    assert not found[0][0][:300, 0].any() and found[0][0][19, 2].all()
