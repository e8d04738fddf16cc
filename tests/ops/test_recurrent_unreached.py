"""Steps that no gradient reaches are passed over: a loss that reads few of many steps."""

import itertools

import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("options", [{}, {"proj_size": 3}], ids=["plain", "projected"])
@pytest.mark.parametrize("B, I", [(1, 2), (2, 5), (17, 2)])
def test_gradients_are_those_of_all_steps(kind, options, B, I, threads, monkeypatch):
    if options and kind is not nn.LSTM:
        pytest.skip("no projection")
    torch.manual_seed(0)
    layer, true = kind(I, 7, **options), kind(I, 7, **options).double()
    true.load_state_dict(layer.state_dict())
    bl.attach(layer, "linear")
    x = torch.randn(T, B, I)
    for read in READ.values():
        through_state = len(read) == 2
        exact = gradients(true, x.double(), read, through_state)
        for saved, count in itertools.product(planner.Saved, (1, 2, 3)):
            if saved == planner.Saved.NOTHING:
                continue
            monkeypatch.setattr("bppsa_lightning.planner.choose.saved", lambda _, s=saved: s)
            planner.choose._plan.cache_clear()
            threads(count)
            found = gradients(layer, x, read, through_state)
            for a, b in zip(found, exact, strict=True):
                assert (a.double() - b).abs().max() <= 3e-6 * b.abs().max() + 1e-37
    planner.choose._plan.cache_clear()


def test_steps_that_no_gradient_reaches_have_zeros_and_cost_no_nan():
    """Memory that nobody wrote would show: results are allocated, not cleared."""
    torch.manual_seed(0)
    layer = nn.GRU(2, 7)
    bl.attach(layer, "linear")
    x = torch.randn(T, 4, 2)
    for _ in range(3):
        poison = [torch.full((T, 4, 2), float("nan")) for _ in range(8)]
        del poison
        found = gradients(layer, x, [T - 1])[0]
        assert (found[-1] != 0).all()
        assert (found[: T - 400] == 0).all()


def test_a_gradient_that_never_fades_reaches_all_steps():
    layer = nn.RNN(1, 1, nonlinearity="relu", bias=False)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(1.0)
    bl.attach(layer, "linear")
    found = gradients(layer, torch.ones(T, 2, 1), [T - 1])[0]
    assert torch.equal(found, torch.full((T, 2, 1), 0.5))
