"""bl.scan by a scan of the step's Jacobians: exact whatever the recurrence remembers."""

import copy

import pytest
import torch
from support.windows import ULP, assert_as_exact, far, leaves, loop, run
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.steps import jacobians, scans_of
from experiments.benchmarks.loops import CELLS, first_state, inputs_of


def scanned(algorithm):
    return lambda step, init, xs: bl.scan(step, init, xs, algorithm=algorithm)


def known(module):
    return scans_of(module.parameters())[-1]


@pytest.fixture(params=[jacobians._MOST_BYTES, 1, 20_000], ids=["at once", "by one", "by some"])
def blocks(request, monkeypatch):
    """How many time steps' Jacobians are held at a time."""
    monkeypatch.setattr(jacobians, "_MOST_BYTES", request.param)


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("algorithm", ["chunked", "blelloch"])
def test_gradients_are_the_loop_s(cell, algorithm, blocks):
    torch.manual_seed(0)
    step = cell(3, 5).double()
    init = leaves(first_state(step, 2), torch.float64)
    xs = leaves(inputs_of(step, 50, 2, 3), torch.float64)
    found = run(scanned(algorithm), step, init, xs)
    assert f"gradients by a {algorithm} scan of its Jacobians" in str(known(step))
    true = run(loop, step, *leaves((init, xs)))
    assert max(max(pair) for pair in far(found, true)) < 1e-10


class Averaged(nn.Module):
    """A state that no gradient goes through, or into one part of it; its y has one."""

    def __init__(self, kept):
        super().__init__()
        self.of_x, self.of_h, self.kept = nn.Linear(3, 4), nn.Linear(4, 4), kept

    def forward(self, h, x):
        new = 0.9 * h + 0.1 * self.of_x(x).tanh()
        detached = torch.cat([new[:, : self.kept], new[:, self.kept :].detach()], 1)
        return detached if self.kept else new.detach(), self.of_h(h).sin() + self.of_x(x)


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("algorithm", ["auto", "chunked", "blelloch"])
def test_a_detached_state(algorithm, kept):
    torch.manual_seed(0)
    step = Averaged(kept).double()
    init, xs = (
        leaves(torch.randn(2, 4), torch.float64),
        leaves(torch.randn(200, 2, 3), torch.float64),
    )
    gradients = []
    for scan in (loop, scanned(algorithm)):
        _, y = scan(step, init, xs)
        gradients.append(torch.autograd.grad(y.square().sum(), [init, xs, *step.parameters()]))
    assert "scan of its Jacobians" in str(known(step))
    for found, wanted in zip(*reversed(gradients), strict=True):
        assert (found - wanted).abs().max() < 1e-12 * wanted.abs().max()


class Integrator(nn.Module):
    """Never forgets; one part of its state is none of its y."""

    def __init__(self):
        super().__init__()
        self.of_x = nn.Linear(3, 6)

    def forward(self, state, x):
        h, total = state
        h = (h + 0.1 * self.of_x(x)).sin()
        return (h, total + h), h


def test_auto_scans_what_windows_cannot():
    torch.manual_seed(0)
    step = Integrator()
    init, xs = leaves((torch.randn(2, 6), torch.zeros(2, 6))), leaves(torch.randn(400, 2, 3))
    found = run(scanned("auto"), step, init, xs)
    words = str(known(step))
    assert "remembers more than 50 steps; gradients by a scan of its Jacobians" in words
    walk = run(loop, step, *leaves((init, xs)))
    true = run(loop, copy.deepcopy(step).double(), *leaves((init, xs), torch.float64))
    assert_as_exact(found, [walk], true)


def test_large_states_stay_loops():
    cell = nn.Linear(3, 100)
    step = lambda h, x: (h + cell(x),) * 2  # noqa: E731
    bl.scan(step, torch.zeros(2, 100), torch.randn(200, 2, 3))[1].sum().backward()
    assert str(known(cell)).endswith("a loop; it remembers more than 25 steps")


def test_without_gradients_it_is_the_loop():
    step = Integrator()
    with torch.no_grad():
        bl.scan(step, (torch.zeros(2, 6),) * 2, torch.randn(400, 2, 3))
    assert "Jacobians" not in str(known(step))


@pytest.mark.parametrize("T", [2, 3, 7])
def test_few_steps_frozen_parts_and_states_that_are_changed_in_place(T, blocks):
    torch.manual_seed(0)
    cell = nn.Linear(3, 4)
    cell.bias.requires_grad_(False)

    def step(h, x):
        h.mul_(0.9).add_(cell(x).tanh())
        return h, None

    h, xs = torch.randn(2, 4, requires_grad=True), torch.randn(T, 2, 3)
    last, ys = bl.scan(step, h, xs, algorithm="chunked")
    assert ys is None
    last.square().sum().backward()
    found = h.grad, cell.weight.grad
    assert cell.bias.grad is None
    cell.zero_grad()
    true = torch.zeros_like(h).copy_(h).detach().requires_grad_()
    carry = true
    for x in xs:
        carry = carry * 0.9 + cell(x).tanh()
    carry.square().sum().backward()
    torch.testing.assert_close(found, (true.grad, cell.weight.grad))


def test_parts_that_cannot_be_differentiated_are_loops():
    cell = nn.Linear(3, 4)
    step = lambda s, x: ((s[0] * 0.5 + cell(x), s[1] + 1), s[0])  # noqa: E731
    init = torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)
    _, ys = bl.scan(step, init, torch.randn(200, 2, 3), algorithm="blelloch")
    ys.sum().backward()
    assert "not of one floating-point dtype" in str(known(cell))
    with torch.autocast("cpu", torch.bfloat16):
        bl.scan(lambda h, x: (h * 0.5 + cell(x).float(),) * 2, init[0], torch.randn(9, 2, 3),
                algorithm="blelloch")  # fmt: skip
    assert "autocast" in str(known(cell))


def test_twice_with_retain_graph():
    step = Integrator()
    init, xs = leaves((torch.randn(2, 6), torch.zeros(2, 6))), leaves(torch.randn(40, 2, 3))
    _, ys = bl.scan(step, init, xs, algorithm="chunked")
    ys.sum().backward(retain_graph=True)
    once = xs.grad.clone()
    ys.sum().backward()
    torch.testing.assert_close(xs.grad, 2 * once)


def test_sums_over_many_rows_are_as_exact_as_the_loop_s():
    """Of a weight's gradient, whose parts all have one sign."""
    torch.manual_seed(0)
    step = Leaky()
    init, xs = leaves(torch.rand(5, 12)), leaves(torch.rand(5, 5).expand(4480, -1, -1))
    found = run(scanned("chunked"), step, init, xs)
    walk = run(loop, step, *leaves((init, xs)))
    true = run(loop, copy.deepcopy(step).double(), *leaves((init, xs), torch.float64))
    assert_as_exact(found, [walk], true, slack=ULP)


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_x = nn.Linear(5, 12)

    def forward(self, h, x):
        h = 0.5 * h + self.of_x(x)
        return h, h
