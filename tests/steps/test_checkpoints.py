"""bl.scan with checkpoints: the same results, and the memory of a few states."""

import copy
import json

import pytest
import torch
from support import forked
from support.windows import assert_as_exact, leaves, loop, run
from torch import nn
from torch.utils import _pytree as pytree

import bppsa_lightning as bl
from bppsa_lightning.steps import scans_of
from bppsa_lightning.steps.checkpoints import Kept, choose, whole
from bppsa_lightning.steps.engine import StepEngine
from bppsa_lightning.windows import Cut
from experiments.benchmarks import scan_memory
from experiments.benchmarks.loops import CELLS, first_state, inputs_of


def scanned(algorithm="linear", checkpoint=True, **more):
    return lambda *a: bl.scan(*a, algorithm=algorithm, checkpoint=checkpoint, **more)


def known(module):
    return scans_of(module.parameters())[-1]


def case(cell, T, B=3, I=5, H=9):
    torch.manual_seed(0)
    step = cell(I, H)
    return step, leaves(first_state(step, B)), leaves(inputs_of(step, T, B, I))


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("algorithm", ["linear", "speculative"])
def test_gradients_are_as_exact_and_a_loop_s_results_the_same_bits(cell, algorithm):
    step, init, xs = case(cell, 900)
    found = run(scanned(algorithm), step, init, xs)
    assert "; checkpoints every " in str(known(step))
    walk = run(loop, step, *leaves((init, xs)))
    if algorithm == "linear":
        gradients = len([*step.parameters(), *pytree.tree_leaves((init, xs))])
        results = zip(found[:-gradients], walk[:-gradients], strict=True)
        assert all(torch.equal(a, b) for a, b in results)
    true = run(loop, copy.deepcopy(step).double(), *leaves((init, xs), torch.float64))
    assert_as_exact(found, [walk], true)


@pytest.mark.parametrize("algorithm", ["linear", "speculative"])
def test_what_is_walked_again_has_the_same_bits(algorithm, monkeypatch):
    walked = {False: set(), True: set()}
    call = StepEngine.__call__

    def watched(self, xs, state):
        ys, last = call(self, xs, state)
        walked[torch.is_grad_enabled()].add(tuple(ys[0].flatten().tolist()))
        return ys, last

    monkeypatch.setattr(StepEngine, "__call__", watched)
    step, init, xs = case(CELLS["GRUD"], 900)
    _, ys = bl.scan(step, init, xs, algorithm=algorithm, checkpoint=True)
    assert (known(step).cut is not None) == (algorithm == "speculative")
    walked[True].clear()  # by which was measured what is kept
    ys.sum().backward()
    assert len(walked[True]) > 10
    assert walked[True] <= walked[False]


def test_resets_and_reverse():
    step, init, xs = case(CELLS["AUGRU"], 300)
    reset = torch.rand(300, 3) < 0.02
    each = []
    for checkpoint in (False, True):
        walk = scanned(checkpoint=checkpoint, reset=reset, reverse=True)
        each.append(run(walk, step, *leaves((init, xs))))
    torch.testing.assert_close(*each, rtol=1e-5, atol=1e-5)


def test_auto_below_the_steps_that_windows_are_for():
    step, init, xs = case(CELLS["SRU"], 60)
    found = run(scanned("auto"), step, init, xs)
    assert "a loop; checkpoints every" in str(known(step))
    torch.testing.assert_close(found, run(loop, step, *leaves((init, xs))), rtol=1e-5, atol=1e-5)


def test_a_scan_of_jacobians_keeps_states_alone_anyway():
    step, init, xs = case(CELLS["SRU"], 60)
    run(scanned("chunked"), step, init, xs)
    assert str(known(step)).endswith("gradients by a chunked scan of its Jacobians")


def leaky(cell):
    def step(h, x):
        h = (0.5 * h + cell(x)).tanh()
        return h, h

    return step


class TestMemory:
    """Where `memory` says how much may be kept."""

    def words(self, T=300, **more):
        cell = nn.Linear(6, 6)
        _, ys = bl.scan(leaky(cell), torch.zeros(2, 6), torch.randn(T, 2, 6), **more)
        ys.sum().backward()
        assert cell.weight.grad.isfinite().all()
        return str(known(cell))

    def test_enough_is_no_checkpoint(self):
        assert "checkpoints" not in self.words(algorithm="linear", memory=1 << 30)
        assert "checkpoints" not in self.words(algorithm="speculative", memory=1 << 30)

    def test_less_is_more_checkpoints(self):
        often, seldom = (self.words(algorithm="linear", memory=m) for m in (100_000, 400_000))
        steps = [int(w.split("checkpoints every ")[1].split()[0]) for w in (often, seldom)]
        assert 1 < steps[0] < steps[1] < 300

    def test_windows_that_would_keep_more_are_left_to_the_loop(self):
        assert " windows of " in self.words(1000, memory=1 << 30)
        words = self.words(1000, memory=60_000)
        assert "windows would keep more than the given memory; checkpoints every" in words
        assert " windows of " in self.words(1000, algorithm="speculative", memory=60_000)

    def test_after_windows_were_left_to_the_loop_they_are_not_given_up(self):
        cell = nn.Linear(6, 6)
        for memory in (60_000, 60_000, 1 << 30):
            h, xs = torch.zeros(2, 6), torch.randn(1000, 2, 6)
            bl.scan(leaky(cell), h, xs, memory=memory)[1].sum().backward()
        assert " windows of " in str(known(cell))

    @pytest.mark.parametrize(
        "memory, error, words",
        [
            (1.5, TypeError, "memory: found float, wanted a number of bytes"),
            (True, TypeError, "memory: found bool"),
            (-1, ValueError, "memory: found -1, wanted a number of bytes >= 0"),
        ],
    )
    def test_errors_name_the_argument(self, memory, error, words):
        with pytest.raises(error, match=words):
            self.words(memory=memory)

    @pytest.mark.parametrize("cut", [whole(16384), Cut(16384, 64, 256, 60), whole(1)])
    def test_what_is_chosen_fits_or_is_nearly_the_least(self, cut):
        kept = Kept(step=8000, state=600, objects=20_000, checkpoint=2000)
        least = min(kept.between(cut, n) for n in range(1, cut.span + 1))
        for budget in (0, least // 2, 2 * least, 10 * least, kept.whole(cut)):
            found = choose(kept, cut, budget)
            assert found.kept <= max(budget, 1.3 * least)
            assert (found.steps == 0) == (budget >= kept.whole(cut))
            if found.steps and found.steps < cut.span:  # no fewer checkpoints would do
                assert kept.between(cut, found.steps + 1) > max(budget, 1.25 * least)


class TestSteps:
    """What a step may do, and what is refused."""

    def scan(self, step, h=None, xs=None, algorithm="linear"):
        h = torch.zeros(2, 6) if h is None else h
        xs = torch.randn(200, 2, 6) if xs is None else xs
        return bl.scan(step, h, xs, algorithm=algorithm, checkpoint=True)[1]

    def test_what_cannot_be_walked_again_is_refused(self):
        cell, norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        scaled = nn.Linear(6, 6)
        scaled.weight.register_hook(lambda g: g)
        for step, words in [
            (lambda h, x: (0.5 * h + nn.functional.dropout(cell(x)),) * 2, "random numbers"),
            (lambda h, x: (norm(0.5 * h + cell(x)),) * 2, "changes tensors of its own"),
            (lambda h, x: (0.5 * h + scaled(x),) * 2, "has hooks"),
        ]:
            with pytest.raises(ValueError, match=f"found a step that cannot be walked .*{words}"):
                self.scan(step)
        with pytest.raises(ValueError, match="carry does not have the samples in dimension 0"):
            self.scan(lambda h, x: (h + cell(x).sum(),) * 2, torch.zeros(()))

    def test_without_gradients_nothing_is_refused_or_kept(self):
        cell = nn.Linear(6, 6)
        with torch.no_grad():
            self.scan(lambda h, x: (0.5 * h + nn.functional.dropout(cell(x)),) * 2)
            self.scan(leaky(cell))
        assert "checkpoints" not in str(known(cell))

    def test_steps_that_mix_samples(self):
        cell, h, xs = nn.Linear(6, 6), *leaves((torch.randn(2, 6), torch.randn(200, 2, 6)))
        step = lambda h, x: (cell(x).tanh() + 0.5 * h - 0.3 * h.mean(0),) * 2  # noqa: E731
        self.scan(step, h, xs, "speculative").square().sum().backward()
        found = h.grad, xs.grad, cell.weight.grad
        assert "by their place; checkpoints every" in str(known(cell))
        cell.zero_grad()
        h, xs = leaves((h, xs))
        loop(step, h, xs)[1].square().sum().backward()
        torch.testing.assert_close(found, (h.grad, xs.grad, cell.weight.grad))

    def test_a_state_may_be_changed_in_place(self):
        cell, h, xs = nn.Linear(6, 6), torch.zeros(2, 6), torch.randn(200, 2, 6)

        def step(h, x):
            h.mul_(0.5).add_(cell(x).tanh())
            return h, h.clone()

        self.scan(step, h, xs).square().sum().backward()
        found = cell.weight.grad
        cell.weight.grad = None
        loop(leaky_in_two(cell), h, xs)[1].square().sum().backward()
        torch.testing.assert_close(found, cell.weight.grad)

    @pytest.mark.parametrize("algorithm", ["linear", "speculative"])
    def test_under_autocast_a_walk_is_repeated_under_it(self, algorithm, monkeypatch):
        cell, casts, call = nn.Linear(6, 6), [], StepEngine.__call__

        def watched(self, xs, state):
            casts.append(torch.is_autocast_enabled("cpu"))
            return call(self, xs, state)

        def step(h, x):
            h = 0.5 * h + cell(x).float().tanh()
            return h, h

        monkeypatch.setattr(StepEngine, "__call__", watched)
        with torch.autocast("cpu", torch.bfloat16):
            ys = self.scan(step, algorithm=algorithm)
        forward = len(casts)
        ys.sum().backward()
        assert len(casts) > forward and all(casts[forward:])
        assert cell.weight.grad.isfinite().all() and cell.weight.grad.abs().max() > 0

    @pytest.mark.parametrize("frozen", [False, True])
    def test_a_tensor_that_was_changed_since_is_an_error(self, frozen):
        cell = nn.Linear(6, 6)
        cell.weight.requires_grad_(not frozen)
        for tensor in (cell.weight, xs := torch.randn(200, 2, 6)):
            ys = self.scan(leaky(cell), xs=xs)
            with torch.no_grad():
                tensor.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                ys.sum().backward()

    def test_compiled_steps_stay_compiled(self):
        cell, calls = nn.Linear(6, 6), []

        def backend(graph, inputs):
            def run(*arguments):
                calls.append(1)
                return graph(*arguments)

            return run

        step = torch.compile(leaky(cell), backend=backend)
        self.scan(step).sum().backward()
        assert len(calls) > 300  # forward, and once more

    @pytest.mark.parametrize("algorithm", ["linear", "speculative"])
    def test_backward_twice(self, algorithm):
        cell, xs = nn.Linear(6, 6), torch.randn(200, 2, 6, requires_grad=True)
        ys = self.scan(leaky(cell), xs=xs, algorithm=algorithm)
        ys.sum().backward(retain_graph=True)
        once = xs.grad.clone()
        ys.sum().backward()
        assert torch.equal(xs.grad, 2 * once)
        with pytest.raises(RuntimeError, match="second time"):
            ys.sum().backward()


def leaky_in_two(cell):
    return lambda h, x: (0.5 * h + cell(x).tanh(),) * 2


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells_as_they_are(kind):
    torch.manual_seed(0)
    cell, h = kind(5, 7), torch.randn(3, 7)
    init, xs = (h, torch.randn(3, 7)) if kind is nn.LSTMCell else h, torch.randn(500, 3, 5)
    seen = []
    cell.weight_hh.register_hook(seen.append)
    each = []
    for more in ({}, {"checkpoint": True}, {"memory": 50_000}):
        each.append(run(lambda *a, more=more: bl.scan(*a, **more), cell, *leaves((init, xs))))
    assert len(seen) == 3
    for found in each[1:]:
        torch.testing.assert_close(found, each[0], rtol=1e-5, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("way", scan_memory.WAYS)
def test_memory_of_4096_steps(way, tmp_path):
    """By the system's word, of a process each: what forward and backward take at most."""
    rows = {}
    for kept in scan_memory.KEPT:
        said = forked.run(tmp_path, scan_memory.__name__, "one", way, kept, "--steps", 4096)
        rows[kept] = json.loads(said)
    plain, checkpointed, bound = (row["bytes"] for row in rows.values())
    assert checkpointed < bound < plain
    assert checkpointed < plain / {"linear": 5, "windows": 2, "cell": 1.3}[way]
    assert bound < scan_memory.memory_of(4096) + 1.3 * checkpointed
    assert (" windows of " in "".join(rows["all"]["how"])) == (way == "windows")


@pytest.mark.slow
def test_a_row_of_the_record_is_of_processes():
    row = scan_memory.row("windows", "checkpoint", 1, 1024)
    assert (row["way"], row["H"], row["kept"]) == ("windows", 32, "checkpoint")
    assert row["bytes"] >= 1024 * 8 * 32 * 4 and row["seconds"] > 0
    assert " windows of " in "".join(row["how"]) and "checkpoints every" in "".join(row["how"])
