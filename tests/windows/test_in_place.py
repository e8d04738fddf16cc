"""One sequence, walked where it lies: whatever was guessed, the results are the walk's."""

import copy

import pytest
import torch
from support.windows import assert_as_exact
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.windows import in_place, levels, memory


def results(layer, x, u):
    x = x.clone().requires_grad_()
    for p in layer.parameters():
        p.grad = None
    y, _ = layer(x)
    y.backward(u)
    return [y.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]


@pytest.fixture(params=["RNN", "GRU", "LSTM"])
def case(request):
    torch.manual_seed(0)
    stock = getattr(nn, request.param)(3, 12)
    layer, true = copy.deepcopy(stock), copy.deepcopy(stock).double()
    [chain] = bl.attach(layer, "speculative")
    x, u = torch.randn(1201, 1, 3), torch.rand(1201, 1, 12)

    def check():
        found, walk = results(layer, x, u), results(stock, x, u)
        assert_as_exact(found, [walk], results(true, x.double(), u.double()), slack=2e-6)
        return chain._windows._memories[0].report

    return check


def test_windows_that_meet(case):
    report = case()
    assert report.windows > 1
    assert (report.missed, report.gradients_missed, report.passes) == (0, 0, 0)


@pytest.mark.parametrize("share", [1, 3])
def test_what_was_guessed_wrongly_is_repaired(case, share, monkeypatch):
    """With a warm-up too short to have met, forwards and backwards; 1201 steps leave a head."""
    right = memory.choose_cut

    def short(*arguments):
        cut = right(*arguments)
        return cut._replace(warm=share, windows=7, span=171)

    monkeypatch.setattr(memory, "choose_cut", short)
    monkeypatch.setattr(memory.Memory, "_learn", lambda *_: None)
    walk = in_place._windows
    monkeypatch.setattr(
        in_place, "_windows",
        lambda cut, first=0, steps=None: walk(cut, first, None if steps is None else share),
    )  # fmt: skip
    report = case()
    assert report.missed > 3
    assert report.passes >= report.missed
    assert report.gradients_missed > 3
    assert report.backward_passes >= report.gradients_missed


def test_after_an_overflow_the_walk_says_what_is_infinite(case, monkeypatch):
    monkeypatch.setattr(in_place, "gradients_met", lambda *_: None)
    assert case().gradients_missed > 1


def test_gradients_meet_within_a_walks_rounding():
    of = levels.Levels((), (), gradients=2.0)
    g = torch.tensor([[1.0, 1e-3], [0.5, 2e-3]])
    eps = torch.finfo(torch.float32).eps
    assert levels.gradients_met(of, [g], [g + 5 * eps * g]) == [True, True]
    assert levels.gradients_met(of, [g], [g + 20 * eps * g]) == [False, False]
    assert levels.gradients_met(of, [g], [g / 0]) is None
    assert levels.gradients_met(of, [g], [g * torch.tensor([[1.0], [2.0]])]) == [True, False]


def test_states_beside_infinite_ones_have_not_met():
    of = levels.Levels((torch.full((2,), 1e-6),), (1.0,))
    true = torch.tensor([[[1.0, float("inf")]], [[1.0, float("nan")]], [[1.0, 2.0]]])
    assert of.met([true], [true]).tolist() == [True, True, True]
    assert of.met([true.nan_to_num(5.0, 5.0, 5.0)], [true]).tolist() == [False, False, True]
