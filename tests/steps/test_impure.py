"""Steps that are no pure functions, and do not show it in a first call with zeros: the loop's."""

import itertools
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


class LookedUpByTheFirst(Step):
    """A table of time steps, as the first sample has it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(T))

    def forward(self, h, x):
        return super().forward(h, x + self.table[(x[0].abs().sum() * 10).long() % T])


class LedByTheLast(Step):
    def forward(self, h, x):
        return super().forward(0.5 * h + 0.4 * h[-1:], x)


class BufferAfterItself(Step):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def next(self, h, x):
        self.n = self.n + 1
        return super().next(h, x) * (self.n % 7 > 0)


class BufferByData(BufferAfterItself):
    def next(self, h, x):
        self.n.data.add_(1)
        return Step.next(self, h, x) * (self.n % 7 > 0)


class ListByDefault(Step):
    def next(self, h, x, *, seen=None):
        return super().next(h, x) * (counted_by_default() % 7 > 0)


def counted_by_default(seen=[0]):  # noqa: B006
    seen.append(1)
    return len(seen)


class AttributeOfTheClass(Step):
    calls = 0

    def __init__(self):
        super().__init__()
        AttributeOfTheClass.calls = 0

    def next(self, h, x):
        AttributeOfTheClass.calls += 1
        return super().next(h, x) * (self.calls % 7 > 0)


class ListInATuple(Step):
    def __init__(self):
        super().__init__()
        self.kept = ([], "calls")

    def next(self, h, x):
        self.kept[0].append(1)
        return super().next(h, x) * (len(self.kept[0]) % 7 > 0)


class Slots:
    __slots__ = ("calls",)


class SlotOfAnObject(Step):
    def __init__(self):
        super().__init__()
        self.slots = Slots()
        self.slots.calls = 0

    def next(self, h, x):
        self.slots.calls += 1
        return super().next(h, x) * (self.slots.calls % 7 > 0)


class NumberOfAnArray(Step):
    def __init__(self):
        super().__init__()
        self.count = np.zeros(1)

    def next(self, h, x):
        self.count += 1
        return super().next(h, x) * float(self.count[0] % 7 > 0)


class Iterated(Step):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count(1)

    def next(self, h, x):
        return super().next(h, x) * (next(self.numbers) % 7 > 0)


class OwnRandom(Step):
    def __init__(self):
        super().__init__()
        self.python, self.numpy = random.Random(0), np.random.default_rng(0)

    def next(self, h, x):
        return super().next(h, x) * (self.python.random() + self.numpy.random() > 0.3)


class Recorded(Step):
    def __init__(self):
        super().__init__()
        self.linear.register_forward_hook(lambda *_: seen_here.append(1))

    def next(self, h, x):
        return super().next(h, x) * (len(seen_here) % 7 > 0)


class Scripted(Step):
    def __init__(self):
        super().__init__()
        self.script = torch.jit.script(halved_if_large)

    def forward(self, h, x):
        h = self.script(self.next(h, x))
        return h, h


def halved_if_large(h: torch.Tensor):
    if bool(h[0, 0] > 0.9):
        h = 0.5 * h
    return h


class ClippedGradients(Step):
    def forward(self, h, x):
        h, _ = super().forward(h, x)
        if h.requires_grad:
            h.register_hook(lambda g: g.clamp(-0.01, 0.01))
        return h, h


class ChangesAndShowsItsState(Step):
    def forward(self, h, x):
        with torch.no_grad():
            h.copy_(self.next(h, x))
        return h, h


class CallsItself(Step):
    def __init__(self):
        super().__init__()

        def power(h, n):
            return h if n == 0 else torch.tanh(0.9 * power(h, n - 1))

        self.power = power

    def next(self, h, x):
        seen_here.append(1)
        return super().next(self.power(h, 3), x)


DRAWS, MIXES = "draws random numbers", "mixes samples"
CHANGES, READS = "changes variables of its own", "reads numbers of its arguments"
STEPS = {
    Dropout: DRAWS, Noise: DRAWS, PythonsRandom: DRAWS, NumpysRandom: DRAWS, OwnGenerator: DRAWS,
    NormOfAll: MIXES, AnySample: MIXES, FirstSample: MIXES, TableOfRows: MIXES,
    ListOfTheModule: CHANGES, CounterOfTheModule: CHANGES, AttributeOfAnAttribute: CHANGES,
    PlacesOfLargeOnes: READS, LargeOnes: READS, PlacesByWhere: READS,
    GradientsOfAnEnergy: "torch.func", LookedUpByTheFirst: MIXES, LedByTheLast: MIXES,
    BufferAfterItself: CHANGES, BufferByData: "changes tensors of its own", ListByDefault: CHANGES,
    AttributeOfTheClass: CHANGES, ListInATuple: CHANGES, SlotOfAnObject: CHANGES,
    NumberOfAnArray: CHANGES, Iterated: "holds an iterator", OwnRandom: CHANGES, Recorded: CHANGES,
    Scripted: "TorchScript", ClippedGradients: "gives gradients hooks", CallsItself: CHANGES,
    ChangesAndShowsItsState: "its y is the state",
}  # fmt: skip


def trained(kind, walk):
    """The last state, ys, the gradients, and what generators give next."""
    global calls_here
    seen_here.clear()
    calls_here = 0
    counted_by_default.__defaults__[0].clear()
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
