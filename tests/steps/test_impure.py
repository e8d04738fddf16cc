"""Steps that are no pure functions, and do not show it in a first call with zeros: the loop's."""

import random
import types

import numpy as np
import pytest
import torch
from support.windows import leaves, loop
from torch import nn
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl
from bppsa_lightning.steps import scans_of

T, B, H = 400, 2, 6
ALGORITHMS = ["auto", "speculative", "chunked"]

seen_here: list[torch.Tensor] = []
calls_here = 0


class Step(nn.Module):
    """h = tanh(W h + x), and what a subclass does beside."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__()
        self.linear = nn.Linear(H, H)

    def next(self, h, x):
        return torch.tanh(self.linear(h) + x)

    def forward(self, h, x):
        h = self.next(h, x)
        return h, h


class Dropout(Step):
    def forward(self, h, x):
        return super().forward(nn.functional.dropout(h, 0.5), x)


class Noise(Step):
    def forward(self, h, x):
        return super().forward(h * (1 + 0.3 * torch.randn_like(h)), x)


class PythonsRandom(Step):
    def forward(self, h, x):
        return super().forward(h * (random.random() > 0.05), x)


class NumpysRandom(Step):
    def forward(self, h, x):
        return super().forward(h * (np.random.rand() > 0.05), x)


class OwnGenerator(Step):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(4)

    def forward(self, h, x):
        return super().forward(h * torch.rand(H, generator=self.generator), x)


class NormOfAll(Step):
    def forward(self, h, x):
        return super().forward(h / h.norm().clamp(min=1), x)


class AnySample(Step):
    def forward(self, h, x):
        h, _ = super().forward(0.5 * h, x)
        h = torch.where((h > 0.99).any(), h * 0, h)
        return h, h


class FirstSample(Step):
    def forward(self, h, x):
        return super().forward(torch.cat([h[:1] * 0, h[1:]]), x)


class TableOfRows(Step):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(4096, H))

    def forward(self, h, x):
        return super().forward(h, x + self.table[: h.shape[0]])


class ListOfTheModule(Step):
    def next(self, h, x):
        seen_here.append(h)
        return super().next(h, x) * (len(seen_here) % 7 > 0)


class CounterOfTheModule(Step):
    def next(self, h, x):
        return super().next(h, x) * (counted() % 7 > 0)


def counted():
    global calls_here
    calls_here += 1
    return calls_here


class AttributeOfAnAttribute(Step):
    def __init__(self):
        super().__init__()
        self.settings = types.SimpleNamespace(of=types.SimpleNamespace(calls=0))

    def next(self, h, x):
        self.settings.of.calls += 1
        return super().next(h, x) * (self.settings.of.calls % 7 > 0)


class PlacesOfLargeOnes(Step):
    def forward(self, h, x):
        h, _ = super().forward(h, x)
        h = h * 0 if len((h.mean(-1) > 0.6).nonzero()) else h
        return h, h


class LargeOnes(Step):
    def forward(self, h, x):
        h, _ = super().forward(h, x)
        h = h * 0 if h[h > 0.995].numel() else h
        return h, h


class PlacesByWhere(Step):
    def forward(self, h, x):
        h, _ = super().forward(h, x)
        h = h * 0 if len(torch.where(h > 0.995)[0]) else h
        return h, h


class GradientsOfAnEnergy(Step):
    def forward(self, h, x):
        slope = vmap(grad(lambda q: self.linear(q).square().sum()))(h)
        h = torch.tanh(0.5 * h - 0.5 * slope + x)
        return h, h


DRAWS, MIXES = "draws random numbers", "mixes samples"
CHANGES, READS = "changes variables of its own", "reads numbers of its arguments"
STEPS = {
    Dropout: DRAWS, Noise: DRAWS, PythonsRandom: DRAWS, NumpysRandom: DRAWS, OwnGenerator: DRAWS,
    NormOfAll: MIXES, AnySample: MIXES, FirstSample: MIXES, TableOfRows: MIXES,
    ListOfTheModule: CHANGES, CounterOfTheModule: CHANGES, AttributeOfAnAttribute: CHANGES,
    PlacesOfLargeOnes: READS, LargeOnes: READS, PlacesByWhere: READS,
    GradientsOfAnEnergy: "torch.func",
}  # fmt: skip


def trained(kind, walk):
    """The last state, ys, the gradients, and what generators give next."""
    global calls_here
    seen_here.clear()
    calls_here = 0
    step, (init, xs) = kind(), leaves((torch.zeros(B, H), torch.randn(T, B, H)))
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    last, ys = walk(step, init, xs)
    ys.square().sum().backward()
    drawn = torch.rand(1), torch.tensor([random.random(), np.random.rand()])
    own = torch.rand(1, generator=step.generator) if kind is OwnGenerator else torch.zeros(1)
    found = [last.detach(), ys.detach(), init.grad, xs.grad, *drawn, own]
    return [*found, *(p.grad for p in step.parameters())], step


@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_they_are_walked_as_the_loop(kind, algorithm):
    found, step = trained(kind, lambda *args: bl.scan(*args, algorithm=algorithm))
    true, _ = trained(kind, loop)
    assert all(torch.equal(a, b) for a, b in zip(found, true, strict=True))
    assert STEPS[kind] in scans_of(step.parameters())[-1].why


@pytest.mark.parametrize("kind", [Dropout, Noise, PythonsRandom, OwnGenerator])
def test_other_random_numbers_are_never_walked_again(kind):
    with pytest.raises(ValueError, match="found a step that cannot be walked again .it draws"):
        bl.scan(kind(), torch.zeros(B, H), torch.randn(T, B, H), checkpoint=True)


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
