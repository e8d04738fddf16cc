"""One sequence, walked where it lies: whatever was guessed, the results are the walk's."""

import copy

import pytest
import torch
from support.changed import needs_to_be_told
from support.windows import assert_as_exact
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import bppsa_lightning as bl
from bppsa_lightning._cells import CELLS
from bppsa_lightning.recurrent.in_place import KernelsInPlace
from bppsa_lightning.windows import Cut, Levels, Windows, memory


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


@needs_to_be_told
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_an_output_that_its_owner_changed_is_computed_again(cell):
    torch.manual_seed(0)
    layer = getattr(nn, cell)(3, 12)
    [chain] = bl.attach(layer, "speculative")
    found = []
    for changed in (False, False, True):  # the first call learns how far gradients reach
        x = torch.ones(1201, 1, 3).cumsum(0).sin().requires_grad_()
        y, _ = layer(x)
        assert chain._windows._memories[0].report.windows > 1
        loss, memory_of_y = y.sum(), StorageWeakRef(y.untyped_storage())
        if changed:
            y.detach()[700:] = 3
        found.append(torch.autograd.grad(loss, [x, *layer.parameters()]))
        del y
        assert memory_of_y.expired() and loss.grad_fn is not None
    assert all(torch.equal(a, b) for a, b in zip(*found[1:], strict=True))


@pytest.mark.parametrize("share", [1, 3])
def test_what_was_guessed_wrongly_is_repaired(case, share, monkeypatch):
    """With a warm-up too short to have met, forwards and backwards; 1201 steps leave a head."""
    right = memory.Memory.plan

    def short(*arguments, **options):
        plan = right(*arguments, **options)
        return plan._replace(cut=plan.cut._replace(warm=share, windows=7, span=171, back=share))

    monkeypatch.setattr(memory.Memory, "plan", short)
    monkeypatch.setattr(memory.Memory, "_learn", lambda *_: None)
    report = case()
    assert report.missed > 3
    assert report.passes >= report.missed
    assert report.gradients_missed > 3
    assert report.backward_passes >= report.gradients_missed


def test_after_an_overflow_the_walk_says_what_is_infinite(case, monkeypatch):
    right = KernelsInPlace.pull_windows

    def overflowing(*arguments):
        entered, left, met = right(*arguments)
        left[0][-1] = float("inf")
        return entered, left, [*met[:-1], False]

    monkeypatch.setattr(KernelsInPlace, "pull_windows", overflowing)
    assert case().gradients_missed > 1


def sequence_of(cell, T, K, warm):
    """A sequence in float64, its first state, a cut, and levels that some windows are within."""
    kind, I, H = CELLS[cell], 3, 12
    draw = lambda *size: torch.randn(*size, dtype=torch.float64) / 5  # noqa: E731
    weights = [draw(kind.gates * H, I), draw(kind.gates * H, H), draw(kind.gates * H), None, None]
    state = [draw(1, H)] * (1 + kind.has_c)
    sequence = KernelsInPlace(cell, draw(T, 1, I), state, weights, True, None)
    span = T // K
    levels = Levels(tuple(draw(H).abs() / 10 for _ in state), (0.1,) * len(state), 1e12)
    cut = Cut(T, K, span, warm, back=warm)
    return sequence, state, cut, levels


@pytest.mark.parametrize("cell", ["rnn_tanh", "gru", "lstm"])
@pytest.mark.parametrize("warm", [0, 1, 4, 40])
@pytest.mark.parametrize("T", [360, 367])
def test_verdicts_are_those_of_plain_torch(cell, warm, T):
    torch.manual_seed(warm)
    sequence, state, cut, levels = sequence_of(cell, T, 9, warm)
    first, last, met = sequence.walk_windows(cut, state, levels)
    guessed, true = [s[1:].unsqueeze(1) for s in first], [s[:-1].unsqueeze(1) for s in last]
    assert met == levels.met_in_torch(guessed, true).tolist()
    walked = KernelsInPlace(cell, sequence.x, state, sequence.weights, True, None)
    end = walked.walk(Windows(0, 1, T), state)
    if warm == 40:
        assert all(met)
        torch.testing.assert_close(sequence.output, walked.output, rtol=0, atol=1e-2)
        torch.testing.assert_close([s[-1:] for s in last], end, rtol=0, atol=1e-2)
    for part, guess in zip(sequence.before(Windows(cut.head, 9, cut.span, cut.span)), first):
        torch.testing.assert_close(part[0], guess[0], rtol=0, atol=0)

    u, given = torch.rand_like(sequence.output), [torch.rand_like(s) for s in state]
    sequence.begin_backward([u], [True] * 7)
    entered, left, met = sequence.pull_windows(cut._replace(back=max(cut.warm, 1)), given, levels)
    least = [levels.least_gradients(g[1:]) for g in left]
    near = [
        ((a[:-1] - b[1:]).abs() <= r).all(1) for a, b, r in zip(entered, left, least, strict=True)
    ]
    assert met == torch.stack(near).all(0).tolist()
    torch.testing.assert_close([g[-1:] for g in entered], given, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_verdicts_beside_what_is_not_finite(bad):
    sequence, state, cut, levels = sequence_of("rnn_relu", 90, 9, 5)
    sequence.x[34] = bad
    first, last, met = sequence.walk_windows(cut, state, levels)
    guessed, true = [s[1:].unsqueeze(1) for s in first], [s[:-1].unsqueeze(1) for s in last]
    assert met == levels.met_in_torch(guessed, true).tolist()
    assert not all(met)


def test_states_beside_infinite_ones_have_not_met():
    of = Levels((torch.full((2,), 1e-6),), (1.0,))
    true = torch.tensor([[[1.0, float("inf")]], [[1.0, float("nan")]], [[1.0, 2.0]]])
    assert of.met([true], [true]) == [True, True, True]
    assert of.met([true.nan_to_num(5.0, 5.0, 5.0)], [true]) == [False, False, True]
