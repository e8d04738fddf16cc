"""Windows are verified, and repaired where they miss: against recurrences made to fool them."""

import pytest
import torch
from support.windows import ULP, assert_as_exact, far, leaves, loop, run
from torch import nn
from torch.utils import _pytree as pytree

from bppsa_lightning.steps.engine import StepEngine
from bppsa_lightning.steps.trees import flatten
from bppsa_lightning.windows import Cut, Memory, Report, look, speculate


class InWindows:
    """A walk in windows that is cut as told, whatever a look would say; the last call's report."""

    def __init__(self, windows, warm, level=None, checkpoint=0):
        self.windows, self.warm, self.level = windows, warm, level
        self.checkpoint = checkpoint
        self.report = Report()

    def __call__(self, step, init, xs):
        tensors = list(step.parameters()) if hasattr(step, "parameters") else []
        trees = flatten(init)[1], flatten(xs)[1]
        engine = StepEngine(step, *trees, tensors)
        state, inputs = pytree.tree_leaves(init), pytree.tree_leaves(xs)
        T = len(inputs[0])
        cut = Cut(T, self.windows, T // self.windows, self.warm)
        levels = look(engine, [x.detach() for x in inputs], [s.detach() for s in state], 32).levels
        if self.level is not None:
            rounding = tuple(torch.full_like(r, self.level) for r in levels.rounding)
            levels = levels._replace(rounding=rounding, sizes=(1e-30,) * len(rounding))
        self.report = Report()
        ys, last = speculate(engine, inputs, state, cut, levels, self.report, self.checkpoint)
        return trees[0].unflatten(last), engine.y_tree.unflatten(ys)


class Step(nn.Module):
    """A step from a function, with a parameter."""

    def __init__(self, function, weight=0.9):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.tensor(weight))

    def forward(self, h, x):
        h = self.function(self.weight, h, x)
        return h, h


def latch(w, h, x):
    """Holds a bit until x is far from zero, which writes another one."""
    write = (10 * (x.abs() - 2)).sigmoid().round()
    return (1 - write) * h + write * w * x.sign()


def gated(w, h, x):
    """The same, and nothing of it is rounded to whole bits."""
    write = (8 * (x.abs() - 2)).sigmoid()
    return (1 - write) * h + write * w * x.tanh()


def dead_relu(w, h, x):
    """Silent for most steps; each burst begins where the last one left the state."""
    return (w * h + x - 1.5).relu()


def integrator(w, h, x):
    return h + w * x


def identity(w, h, x):
    return h * 1.0 + 0 * w * x


def logistic(w, h, x):
    """Chaotic: neighbours part."""
    h = (h + 0.01 * x).clamp(0.01, 0.99)
    return (3.1 + w) * h * (1 - h)


def spikes(T, B, every=100):
    """Inputs that are silent for a long time."""
    x = torch.zeros(T, B, 3)
    x[::every] = 3 * torch.randn(len(x[::every]), B, 3).sign()
    return x


FOOLS = {
    "latch": (latch, spikes),
    "a latch that is seldom written": (latch, lambda T, B: spikes(T, B, 500)),
    "gated": (gated, lambda T, B: torch.randn(T, B, 3) * 1.2),
    "dead relu": (dead_relu, lambda T, B: torch.randn(T, B, 3)),
    "integrator": (integrator, lambda T, B: torch.randn(T, B, 3)),
    "identity": (identity, lambda T, B: torch.randn(T, B, 3)),
    "relus that fade": (  # whose tiny states pass a gradient, as zeros do not
        lambda w, h, x: (0.6 * w * h + 0.17 * w * h.roll(1, -1) + x).relu(),
        lambda T, B: torch.cat([torch.randn(T - 400, B, 3), torch.zeros(400, B, 3)]),
    ),
    "silence, then a burst": (
        dead_relu,
        lambda T, B: torch.cat([torch.zeros(T - 50, B, 3), torch.full((50, B, 3), 2.0)]),
    ),
    "denormal": (
        lambda w, h, x: w * 0.5 * h + 1e-40 * x,
        lambda T, B: torch.randn(T, B, 3),
    ),
}


@pytest.mark.parametrize("fool", FOOLS.values(), ids=FOOLS)
@pytest.mark.parametrize("windows, warm", [(8, 16), (40, 1), (2, 300)])
@pytest.mark.parametrize("B, checkpoint", [(1, 0), (3, 0), (3, 7)])
def test_whatever_the_recurrence_results_are_the_walk_s(fool, windows, warm, B, checkpoint):
    function, draw = fool
    torch.manual_seed(0)
    step, walk = Step(function), InWindows(windows, warm, checkpoint=checkpoint)
    init, xs = leaves(torch.randn(B, 3)), leaves(draw(700, B))
    found = run(walk, step, init, xs)
    walked = run(loop, step, *leaves((init, xs)))
    true = run(loop, Step(function).double(), *leaves((init, xs), torch.float64))
    assert_as_exact(found, [walked], true)


def test_chaos_is_walked_and_as_far_from_the_truth_as_the_walk():
    torch.manual_seed(0)
    # (A look would say that it does not forget; its levels are as wide as the attractor.)
    step, walk = Step(logistic), InWindows(8, 20, level=1e-6)
    init, xs = leaves(torch.rand(2, 3)), leaves(torch.randn(400, 2, 3))
    with torch.no_grad():
        found, true = walk(step, init, xs)[1], loop(step, init, xs)[1]
    assert torch.equal(found, true)  # the same walk, to the bit: nothing was guessed
    assert walk.report.walked_from == 1


def test_a_window_that_missed_alone_is_repaired_alone():
    """One piece of the input makes the latch hold where a warm-up cannot see what was written."""
    torch.manual_seed(0)
    xs = torch.randn(800, 2, 3) * 3
    xs[310:400] = 0.0  # silent just before the fourth window, which begins at 400
    step, walk = Step(gated), InWindows(8, 40)
    init, xs = leaves(torch.randn(2, 3)), leaves(xs)
    found = run(walk, step, init, xs)
    assert (walk.report.missed, walk.report.passes, walk.report.walked_from) == (1, 1, None)
    true = run(loop, Step(gated).double(), *leaves((init, xs), torch.float64))
    assert_as_exact(found, [run(loop, step, *leaves((init, xs)))], true)


def test_sums_over_many_passes_are_as_exact_as_one():
    """Windows of a step each, which no look chooses: each pass adds to a parameter's gradient."""
    torch.manual_seed(0)
    xs = torch.rand(199, 1, 3)
    xs[::40] = 9.0  # forgets all: else so many windows would be walked as one
    function = lambda w, h, x: torch.where(x > 5, 0.0, 0.9 * h) + w * x.tanh()  # noqa: E731
    step, walk = Step(function, [0.9, 0.7, 0.5]), InWindows(199, 1)
    init, xs = leaves(torch.randn(1, 3)), leaves(xs)
    found = run(walk, step, init, xs)
    assert walk.report.passes > 20 and walk.report.backward_passes > 20
    walked = run(loop, step, *leaves((init, xs)))
    true = run(loop, Step(function, [0.9, 0.7, 0.5]).double(), *leaves((init, xs), torch.float64))
    assert_as_exact(found, [walked], true, slack=ULP)


def test_what_was_replaced_makes_no_nan():
    """A guess that overflows, where the truth is zero: zero gradients times infinity."""

    def explosive(w, h, x):  # stays about 1, but from 0 it leaps to infinity
        return 1 + 0.5 * w * (h - 1) + 0.01 * x + 1e30 * (1e30 * (0.5 - h).relu())

    torch.manual_seed(0)
    step, walk = Step(explosive), InWindows(4, 10, level=1e-7)
    init, xs = leaves(torch.ones(2, 3)), leaves(torch.randn(400, 2, 3))
    found = run(walk, step, init, xs)
    assert walk.report.walked_from == 0
    assert all(t.isfinite().all() for t in found)
    true = run(loop, step, *leaves((init, xs)))
    assert all(torch.equal(a, b) for a, b in zip(found[:2], true[:2], strict=True))
    assert max(max(pair) for pair in far(found, [t.double() for t in true])) < 1e-5


def test_nan_and_inf_come_where_the_walk_has_them():
    torch.manual_seed(0)
    for bad in (float("nan"), float("inf")):
        xs = torch.randn(400, 2, 3)
        xs[210, 1, 0] = bad
        step = Step(lambda w, h, x: (w * h + x).tanh() * x.cos())
        init, xs = leaves(torch.randn(2, 3)), leaves(xs)
        found = run(InWindows(8, 30), step, init, xs)
        walked = run(loop, step, *leaves((init, xs)))
        for a, b in zip(found, walked, strict=True):
            assert torch.equal(a.isnan(), b.isnan())
            torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("T", [*range(96, 104), 2, 3, 4, 5])
@pytest.mark.parametrize("B", [1, 2])
def test_lengths_around_whole_windows(T, B):
    torch.manual_seed(T)
    windows = min(4, T)
    step, walk = (
        Step(lambda w, h, x: (0.5 * w * h + x).tanh()),
        InWindows(windows, min(20, T // 4 or 1)),
    )
    init, xs = leaves(torch.randn(B, 3)), leaves(torch.randn(T, B, 3))
    found = run(walk, step, init, xs)
    true = run(loop, Step(step.function).double(), *leaves((init, xs), torch.float64))
    assert_as_exact(found, [run(loop, step, *leaves((init, xs)))], true)


def test_a_state_of_one_number_a_sample():
    torch.manual_seed(0)
    step, walk = Step(lambda w, h, x: (0.5 * w * h + x).tanh()), InWindows(5, 30)
    init, xs = leaves(torch.randn(3)), leaves(torch.randn(203, 3))
    found = run(walk, step, init, xs)
    true = run(loop, Step(step.function).double(), *leaves((init, xs), torch.float64))
    assert_as_exact(found, [run(loop, step, *leaves((init, xs)))], true)


@pytest.mark.parametrize("read", ["last", "first", "none but one", "no step"])
def test_gradients_that_enter_at_few_steps(read):
    """Where nothing enters, small gradients are not below anybody's rounding."""
    torch.manual_seed(0)
    step, walk = Step(lambda w, h, x: (0.9 * w * h + x).tanh()), InWindows(8, 40)
    init, xs = leaves(torch.randn(2, 3)), leaves(0.1 * torch.randn(400, 2, 3))
    places = {"last": [399], "first": [0], "none but one": [230], "no step": []}[read]
    mask = torch.zeros(400, 1, 1)
    mask[places] = 1
    weigh = lambda w: w * mask.to(w.dtype)  # noqa: E731
    found = run(walk, step, init, xs, weigh)
    walked = run(loop, step, *leaves((init, xs)), weigh)
    true = run(loop, Step(step.function).double(), *leaves((init, xs), torch.float64), weigh)
    assert_as_exact(found, [walked], true)
    # Each step's own gradient, as far as the walk has it: they fall by sixteen orders of magnitude.
    ours, theirs, exact = found[3], walked[3], true[3]
    size = exact.abs().amax((1, 2)).clamp(min=1e-30)
    error = (ours - exact).abs().amax((1, 2)) / size
    assert (error <= 4 * (theirs - exact).abs().amax((1, 2)) / size + 1e-5).all()


def test_results_are_the_same_bits_run_after_run():
    torch.manual_seed(0)
    step = Step(gated)
    init, xs = torch.randn(2, 3), torch.randn(500, 2, 3)
    first, second = (run(InWindows(8, 30), step, *leaves((init, xs))) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_level_that_is_too_wide_would_be_seen():
    """The test of the tests: windows that are believed although they missed are not exact."""
    torch.manual_seed(0)
    step = Step(gated)
    init, xs = leaves(torch.randn(2, 3)), leaves(torch.randn(500, 2, 3))
    found = run(InWindows(8, 5, level=10.0), step, init, xs)
    true = run(loop, Step(gated).double(), *leaves((init, xs), torch.float64))
    assert max(max(pair) for pair in far(found, true)) > 1e-3


class TestLook:
    def engine(self, function):
        step = Step(function)
        tree = flatten(torch.zeros(1))[1]
        return StepEngine(step, tree, tree, list(step.parameters()))

    def seen(self, function, x=None, most=200):
        torch.manual_seed(0)
        x = torch.randn(1000, 2, 3) if x is None else x
        return look(self.engine(function), [x], [torch.zeros(2, 3)], most)

    @pytest.mark.parametrize("decay", [0.1, 0.5, 0.8])
    def test_warm_ups_are_as_long_as_the_memory(self, decay):
        seen = self.seen(lambda w, h, x: decay * h + x)
        needed = torch.log(torch.tensor(ULP)) / torch.log(torch.tensor(decay))
        assert needed < seen.warm < 2.5 * needed + 32

    @pytest.mark.parametrize("function", [integrator, identity, logistic], ids=lambda f: f.__name__)
    def test_what_does_not_forget_is_found_out_early(self, function):
        seen = self.seen(function)
        assert seen.warm is None
        assert seen.steps <= 200

    def test_levels_are_the_walk_s_rounding(self):
        seen = self.seen(lambda w, h, x: (0.5 * w * h + x).tanh())
        assert (seen.levels.rounding[0] >= ULP / 8).all()
        assert (seen.levels.rounding[0] <= 8 * ULP).all()


class TestMemory:
    """What is learned from call to call."""

    def calls(self, function, n, memory=None, T=400, scale=1.0):
        memory = memory or Memory()
        step = Step(function)
        tree = flatten(torch.zeros(1))[1]
        engine = StepEngine(step, tree, tree, list(step.parameters()))
        cuts = []
        for seed in range(n):
            torch.manual_seed(seed)
            xs, init = [scale * torch.randn(T, 2, 3)], [torch.zeros(2, 3)]
            plan = memory.plan(engine, xs, init, True)
            cuts.append(None if plan is None else plan.cut)
            if plan is not None:
                [ys], _ = speculate(engine, xs, init, *plan)
                ys.sum().backward()
        return memory, cuts

    def test_what_meets_is_looked_at_seldom(self):
        memory, cuts = self.calls(lambda w, h, x: (0.5 * w * h + x).tanh(), 5)
        assert all(cut == cuts[0] is not None for cut in cuts)
        assert memory.windowed == 5

    def test_what_never_meets_is_left_alone_for_longer_and_longer(self):
        memory, cuts = self.calls(integrator, 40)
        assert not any(cuts)
        assert "remembers more than" in memory.reason
        assert memory._next_rest > 16

    def test_windows_that_do_not_meet_are_given_up(self):
        memory, _ = self.calls(lambda w, h, x: (0.5 * w * h + x).tanh(), 1)
        _, cuts = self.calls(integrator, 3, memory)  # it has changed
        assert cuts[0] is not None
        assert cuts[1:] == [None, None]
        assert memory.reason == "states of its windows did not meet"

    def test_a_state_that_was_saved_goes_on_the_same(self):
        function = lambda w, h, x: (0.5 * w * h + x).tanh()  # noqa: E731
        memory, _ = self.calls(function, 3)
        copy = Memory()
        copy.load_state_dict(memory.state_dict(), torch.device("cpu"))
        assert copy.state_dict().keys() == memory.state_dict().keys()
        assert self.calls(function, 2, memory)[1] == self.calls(function, 2, copy)[1]
        assert memory._rest == copy._rest
