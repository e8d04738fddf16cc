"""Steps that are no pure functions, and do not show it in a first call with zeros: the loop's."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from support.impure_steps import (
    STEPS,
    B,
    CounterOfTheModule,
    Dropout,
    H,
    Noise,
    OwnGenerator,
    PythonsRandom,
    Step,
    T,
    forget,
)
from support.windows import leaves, loop
from torch import nn
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl
from bppsa_lightning.steps import scans_of

ALGORITHMS = ["auto", "speculative", "chunked"]


def trained(kind, walk):
    """The last state, ys, the gradients, and what generators give next."""
    forget()
    step, (init, xs) = kind(), leaves((torch.zeros(B, H), torch.randn(T, B, H)))
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    last, ys = walk(step, init, xs)
    ys.square().sum().backward()
    drawn = torch.rand(1), torch.tensor([random.random(), np.random.rand()])
    own = torch.rand(1, generator=step.generator) if kind is OwnGenerator else torch.zeros(1)
    leaves_of = [init, xs, *step.parameters()]
    grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves_of]
    return [last.detach(), ys.detach(), *grads, *drawn, own], step


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_they_are_walked_as_the_loop(kind, algorithm):
    found, step = trained(kind, lambda *args: bl.scan(*args, algorithm=algorithm))
    true, _ = trained(kind, loop)
    assert all(torch.equal(a, b) for a, b in zip(found, true, strict=True))
    assert STEPS[kind] in scans_of(step.parameters())[-1].why


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_resets_hide_nothing(algorithm):
    reset = torch.rand(T, B) < 0.01
    kept = {
        walk: trained(CounterOfTheModule, lambda *a, walk=walk: walk(*a, reset=reset))[0]
        for walk in (partial(bl.scan, algorithm=algorithm), partial(bl.scan, algorithm="linear"))
    }
    assert all(torch.equal(a, b) for a, b in zip(*kept.values(), strict=True))


@pytest.mark.parametrize("kind", [Dropout, Noise, PythonsRandom, OwnGenerator])
def test_other_random_numbers_are_never_walked_again(kind):
    with pytest.raises(ValueError, match="found a step that cannot be walked again .it draws"):
        bl.scan(kind(), torch.zeros(B, H), torch.randn(T, B, H), checkpoint=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_weights_that_are_cached_keep_their_gradients(algorithm):
    found = []
    for walk in (lambda *args: bl.scan(*args, algorithm=algorithm), loop):
        step = Step()
        nn.utils.parametrizations.weight_norm(step.linear)
        with nn.utils.parametrize.cached():
            walk(step, torch.zeros(B, H), torch.ones(T, B, H))[1].sum().backward()
        found.append([p.grad for p in step.parameters()])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["auto", "speculative"])
def test_a_state_that_is_changed_in_place_is_compared_as_it_was(algorithm):
    """Without a graph: a loud and a silent part, so that windows miss."""
    xs, gate = torch.randn(1024, 1, H), torch.full((1024, 1, H), 0.3)
    gate[200:460], gate[700:860] = 1.0, 1.0

    def step(h, both):
        h.mul_(both[1]).add_(both[0])
        return h, h.clone()

    with torch.no_grad():
        found = bl.scan(step, torch.zeros(1, H), (xs, gate), algorithm=algorithm)
        torch.testing.assert_close(found, loop(step, torch.zeros(1, H), (xs, gate)))


def test_values_that_are_equal_are_no_change_and_distributions_may_check():
    class Normal(Step):
        def next(self, h, x):
            self.decay = 0.25 * 4.5
            density = torch.distributions.Normal(h, torch.ones_like(h), validate_args=True)
            return super().next(h, x) + 0.01 * density.log_prob(x)

    step = Normal()
    step.decay = 1.125
    bl.scan(step, torch.zeros(B, H), torch.randn(T, B, H), algorithm="speculative")
    known = scans_of(step.parameters())[-1]
    assert known.cut is not None, known.why


@pytest.mark.parametrize("algorithm", ["linear", *ALGORITHMS, "blelloch"])
def test_a_constant_that_was_changed_since_is_an_error(algorithm):
    step, scale = Step(), torch.full((H,), 0.9)
    init, xs = torch.zeros(B, H), torch.randn(T, B, H)
    ys = bl.scan(lambda h, x: step(h * scale, x), init, xs, algorithm=algorithm)[1]
    scale.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        ys.sum().backward()


@pytest.mark.parametrize("algorithm", ["auto", "speculative"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_of_16_bits(dtype, algorithm):
    """Windows of them, verified by their own rounding."""
    step, inputs = Step(), (torch.zeros(B, H), torch.randn(T, B, H))
    true = loop(step.double(), *(t.to(dtype).double() for t in inputs))[1]
    step.to(dtype)
    step.double()  # the truth of the weights as they are
    true = loop(step, *(t.to(dtype).double() for t in inputs))[1]
    step.to(dtype)
    init, xs = (t.to(dtype) for t in inputs)
    walked = loop(step, init, xs)[1]
    found = bl.scan(step, init, xs, algorithm=algorithm)[1]
    assert found.dtype == dtype and scans_of(step.parameters())[-1].cut is not None
    assert (found - true).abs().max() <= 2 * (walked - true).abs().max()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_reentrant_checkpoint_within_is_the_loop_s(algorithm):
    found = []
    for walk in (lambda *a: bl.scan(*a, algorithm=algorithm), loop):
        torch.manual_seed(0)
        cell, h = nn.GRUCell(H, H), torch.zeros(B, H, requires_grad=True)

        def step(h, x, cell=cell):
            h = checkpoint(cell, x, h, use_reentrant=True)
            return h, h

        walk(step, h, torch.randn(T, B, H))[1].square().sum().backward()
        found.append([h.grad, *(p.grad for p in cell.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class TestStatesThatNeverOccur:
    """Looks and warm-ups begin at others than the walk comes to."""

    def check(self, step, init, xs):
        for algorithm in ("auto", "speculative"):
            found = bl.scan(step, init, xs, algorithm=algorithm)
            torch.testing.assert_close(found, loop(step, init, xs), rtol=0, atol=0)

    def test_of_a_machine(self):
        cell, table = Step(), nn.Embedding(3, H)

        def step(carry, both):
            (h, state), (x, k) = carry, both
            h, _ = cell(h, x + table(state))
            return (h, k), h

        init = torch.zeros(B, H), torch.zeros(B, dtype=torch.long)
        self.check(step, init, (torch.randn(T, B, H), torch.randint(0, 3, (T, B))))
        assert "fails for other states" in scans_of(table.parameters())[-1].why

    @pytest.mark.parametrize("function", [torch.linalg.cholesky, torch.linalg.inv])
    def test_of_a_covariance(self, function):
        scale = nn.Parameter(torch.tensor(0.5))

        def step(p, x):
            p = scale * function(p).square() + torch.eye(3) + x[..., None] * x[..., None, :]
            return p, p

        self.check(step, torch.eye(3).repeat(B, 1, 1), torch.randn(T, B, 3))

    def test_an_error_of_the_step_s_own_comes_from_the_loop(self):
        cell, table = Step(), nn.Embedding(3, H)
        k = torch.zeros(T, B, dtype=torch.long)
        k[300] = 7

        def step(h, both):
            return cell(h, both[0] + table(both[1]))

        with pytest.raises(IndexError, match="index out of range"):
            bl.scan(step, torch.zeros(B, H), (torch.randn(T, B, H), k))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("algorithm", ["auto", "speculative"])
def test_checkpoints_around_several_calls(algorithm, reentrant):
    """The windows of the first ones miss, and the last one has learned from that."""
    length = 2048
    hold = torch.zeros(length, 1, 1)
    for i in range(8):
        hold[i * 256 + 60 : i * 256 + 250] = 1

    class Holding(Step):
        def forward(self, h, both):
            x, hold = both
            h = torch.where(hold > 0.5, h, self.next(0.5 * h, x))
            return h, h

    step, x = Holding(), torch.randn(length, 1, H, requires_grad=True)

    def scan(x):
        return bl.scan(step, torch.zeros(1, H), (x, hold), algorithm=algorithm)[1]

    def gradient(walk):
        x.grad = None
        sum(walk(x * scale).square().mean() for scale in (1, 2, 3)).backward()
        return x.grad

    true = gradient(lambda x: loop(step, torch.zeros(1, H), (x, hold))[1])
    warm = []
    for _ in range(4):
        found = gradient(lambda x: checkpoint(scan, x, use_reentrant=reentrant))
        torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-7)
        warm.append(scans_of(step.parameters())[-1].memory.warm)
    assert warm[-1] > warm[0]  # it learns from step to step all the same
