"""Steps as people cut them out of loops: what is not a function of its arguments is the loop."""

import os
import threading

import pytest
import torch
from support.windows import leaves, loop
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning.steps import places, scans_of

T, B, I, H = 400, 2, 3, 4


def windows(step, init, xs):
    return bl.scan(step, init, xs, algorithm="speculative")


def known(module):
    return scans_of(module.parameters())[-1]


def by_both(walked):
    """What a use of a scan gives, by windows and by the loop: (loss, gradients) of each."""
    found = []
    for walk in (windows, loop):
        torch.manual_seed(0)
        cell = nn.GRUCell(I, H)
        loss = walked(cell, walk, torch.zeros(B, H), torch.randn(T, B, I))
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in cell.parameters())])
        if walk is windows:
            seen = known(cell)
    return seen, *found


def in_place(cell, walk, h, xs):
    """A loss that is added up beside the loop."""
    loss = torch.zeros(())

    def step(h, x):
        nonlocal loss
        h = cell(x, h)
        loss += h.square().mean()
        return h, h

    walk(step, h, xs)
    return loss


def in_place_with_a_history(cell, walk, h, xs):
    loss = cell.weight_hh.square().sum()

    def step(h, x):
        nonlocal loss
        h = cell(x, h)
        loss += h.square().mean()
        return h, h

    walk(step, h, xs)
    return loss


def another_tensor(cell, walk, h, xs):
    loss = torch.zeros(())

    def step(h, x):
        nonlocal loss
        h = cell(x, h)
        loss = loss + h.square().mean()
        return h, h

    walk(step, h, xs)
    return loss


def a_list(cell, walk, h, xs):
    collected = []

    def step(h, x):
        h = cell(x, h)
        collected.append(h)
        return h, h

    walk(step, h, xs)
    assert len(collected) == T
    return torch.stack(collected).square().sum()


def a_counter(cell, walk, h, xs):
    t = 0

    def step(h, _):
        nonlocal t
        h = cell(xs[t], h)
        t += 1
        return h, h

    return walk(step, h, xs)[1].square().sum()


def a_place_in_a_tensor(cell, walk, h, xs):
    collected, t = torch.empty(T, B, H), [0]

    def step(h, x):
        h = cell(x, h)
        collected[t[0]] = h
        t[0] += 1
        return h, h

    walk(step, h, xs)
    return collected.square().sum()


def an_attribute(cell, walk, h, xs):
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.h = cell, torch.zeros(B, H)

        def forward(self, carry, x):
            self.h = self.cell(x, self.h)
            return carry, self.h

    return walk(Keeping(), h, xs)[1].square().sum()


def an_attribute_by_a_method(cell, walk, h, xs):
    class Keeping:
        h = torch.zeros(B, H)

        def step(self, carry, x):
            self.h = cell(x, self.h)
            return carry, self.h

    return walk(Keeping().step, h, xs)[1].square().sum()


@pytest.mark.parametrize(
    "walked, reason",
    [
        (in_place, "changes tensors of its own"),
        (in_place_with_a_history, "changes tensors of its own"),
        (another_tensor, "changes variables of its own"),
        (a_list, "changes variables of its own"),
        (a_counter, "changes variables of its own"),
        (a_place_in_a_tensor, "changes variables of its own"),
        (an_attribute, "changes variables of its own"),
        (an_attribute_by_a_method, "changes variables of its own"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_step_leaves_behind_is_the_loop_s(walked, reason):
    seen, found, true = by_both(walked)
    assert reason in seen.why
    assert all(torch.equal(a, b) for a, b in zip(found, true, strict=True))


def test_decisions_by_numbers_of_all_samples_are_the_loop_s():
    """More samples decide otherwise, though each sample's first step is the same."""

    def walked(cell, walk, h, xs):
        def step(h, x):
            h = cell(x, h)
            h = h * 0.5 if (h > 0.5).any() else h
            return h, h

        return walk(step, h, xs)[1].square().sum()

    seen, found, true = by_both(walked)
    assert "reads numbers of its arguments in Python, by __bool__" in seen.why
    assert all(torch.equal(a, b) for a, b in zip(found, true, strict=True))


def test_decisions_by_other_numbers_stay_in_windows():
    def walked(cell, walk, h, xs):
        cell.register_buffer("halved", torch.tensor(True))

        def step(h, x):
            h = cell(x, h) * (0.5 if cell.halved else 1.0)
            return h, h

        return walk(step, h, xs)[1].square().sum()

    seen, found, true = by_both(walked)
    assert seen.cut is not None
    torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-5)


class TestTensorsOfEachSample:
    """That are read beside the arguments."""

    @staticmethod
    def gated(cell, walk, h, xs):
        gate = cell.bias_hh[:B, None].sigmoid()
        return walk(lambda h, x: (cell(x, h * gate),) * 2, h, xs)[1].square().sum()

    def test_they_are_read_by_the_loop(self):
        seen, found, true = by_both(self.gated)
        assert "cannot take more samples (The size of tensor" in seen.why
        assert "belongs into xs" in seen.why
        assert all(torch.equal(a, b) for a, b in zip(found, true, strict=True))

    def test_as_a_view_in_xs_they_are_read_in_windows(self):
        def walked(cell, walk, h, xs):
            gate = cell.bias_hh[:B, None].sigmoid()

            def step(h, both):
                x, gate = both
                h = cell(x, h * gate)
                return h, h

            return walk(step, h, (xs, gate.expand(T, B, 1)))[1].square().sum()

        seen, found, true = by_both(walked)
        assert seen.cut is not None, seen.why
        _, same, _ = by_both(self.gated)
        torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found, same, rtol=1e-4, atol=1e-5)

    def test_a_result_of_all_pairs_mixes_samples(self):
        def walked(cell, walk, h, xs):
            def step(h, x):
                h = cell(x, h)
                return h, h @ h.T

            return walk(step, h, xs)[1].square().sum()

        assert "mixes samples" in by_both(walked)[0].why


def test_a_step_that_differentiates_is_the_loop():
    """The gradient of an energy moves a state, as in Hamiltonian networks."""

    def walked(cell, walk, h, xs):
        def step(h, x):
            energy = cell(x, h).square().sum()
            (slope,) = torch.autograd.grad(energy, h, create_graph=True)
            return h - 0.1 * slope, h

        return walk(step, h.requires_grad_(), xs)[1].square().sum()

    seen, found, true = by_both(walked)
    assert "fails without a graph" in seen.why
    assert all(torch.equal(a, b) for a, b in zip(found, true, strict=True))


def test_a_step_s_own_error_is_the_loop_s():
    def step(h, x):
        raise LookupError("of the step's own")

    with pytest.raises(LookupError, match="of the step's own"):
        windows(step, torch.zeros(B, H), torch.zeros(T, B, I))


def test_pruned_weights_are_computed_anew_and_no_variables():
    cell = nn.GRUCell(I, H)
    prune.random_unstructured(cell, "weight_hh", 0.5)
    h, xs = leaves(torch.zeros(B, H)), leaves(torch.randn(T, B, I))
    ys = windows(lambda h, x: (cell(x, h * 1.0),) * 2, h, xs)[1]
    assert known(cell).cut is not None, known(cell).why
    ys.sum().backward()
    assert cell.weight_hh_orig.grad.abs().max() > 0


def test_what_a_step_read_may_come_from_inference():
    """As in a validation of Lightning's, in which models make tensors for their steps."""
    cell = nn.GRUCell(I, H)
    with torch.inference_mode():
        scale = torch.full((H,), 0.9)
        h, xs = torch.zeros(B, H), torch.randn(T, B, I)
        step = lambda h, x: (cell(x, h * scale),) * 2  # noqa: E731
        ys = windows(step, h, xs)[1]
        assert known(cell).cut is not None, known(cell).why
        torch.testing.assert_close(ys, loop(step, h, xs)[1], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_a_probe_that_is_not_there():
    begun, ends = threading.Event(), threading.Event()

    def step(h, x):
        begun.set()
        ends.wait(20)
        return 0.5 * h + x, h

    thread = threading.Thread(target=windows, args=(step, torch.zeros(B, H), torch.ones(T, B, H)))
    thread.start()
    assert begun.wait(20)
    child = os.fork()
    if not child:
        os._exit(0 if places.alone().acquire(blocking=False) else 1)
    ends.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("algorithm", ["linear", "speculative", "chunked", "blelloch"])
def test_a_sample_s_state_may_be_one_number(algorithm):
    """A store of water that fills and drains."""
    found = []
    for walk in (lambda *a: bl.scan(*a, algorithm=algorithm), loop):
        torch.manual_seed(0)
        drains = nn.Parameter(torch.tensor([0.9, 0.9]))

        def step(store, rain, drains=drains):
            store = store + rain
            share = store / (1 + store)
            share[store < 0.1] = 0.0
            out = store * share * drains.prod()
            return store - out, out

        init, xs = leaves(torch.full((B,), 3.0)), leaves(torch.rand(T, B))
        last, ys = walk(step, init, xs)
        (ys.square().sum() + last.sum()).backward()
        found.append([ys.detach(), last.detach(), xs.grad, init.grad, drains.grad])
        if algorithm == "speculative" and walk is not loop:
            assert scans_of([drains])[-1].cut is not None
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_what_another_thread_draws_meanwhile_is_not_drawn_again():
    """In each call of a step that draws nothing."""
    wanted, drawn, ends = threading.Event(), threading.Event(), threading.Event()
    numbers, cell = [], nn.Linear(H, H)

    def draws():
        while wanted.wait(20) and not ends.is_set():
            wanted.clear()
            numbers.append(float(torch.rand((), dtype=torch.float64)))
            drawn.set()

    def step(h, x):
        wanted.set()
        assert drawn.wait(20)
        drawn.clear()
        h = torch.tanh(0.5 * cell(h) + x)
        return h, h

    thread = threading.Thread(target=draws)
    thread.start()
    try:
        windows(step, torch.zeros(B, H), torch.randn(T, B, H))
    finally:
        ends.set()
        wanted.set()
        thread.join()
    assert known(cell).cut is not None, known(cell).why
    assert len(numbers) > 3 and len(set(numbers)) == len(numbers)


def test_a_lazy_module_is_made_by_the_loop():
    found = []
    for walk in (windows, loop):
        torch.manual_seed(0)
        cell, x = nn.LazyLinear(H), torch.ones(T, B, H)
        walk(lambda h, x, cell=cell: (torch.tanh(0.5 * h + cell(x)),) * 2, torch.zeros(B, H), x)
        found.append([*cell.parameters(), torch.rand(3)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_more_lists_than_are_looked_into():
    cell, lists, numbers = nn.Linear(H, H), [[0] for _ in range(300)], [0] * 300

    def counting(h, x):
        lists[5][0] += 1
        h = torch.tanh(0.5 * cell(h) + x) * (lists[5][0] % 7 > 0)
        return h, h

    def reading(h, x):
        h = torch.tanh(0.5 * cell(h) + x) + numbers[5]
        return h, h

    windows(counting, torch.zeros(B, H), torch.randn(T, B, H))
    assert lists[5] == [T] and "holds more lists" in known(cell).why
    windows(reading, torch.zeros(B, H), torch.randn(T, B, H))
    assert known(cell).cut is not None


def test_a_hook_of_all_modules_is_seen():
    calls, cell = [], nn.Linear(H, H)
    hook = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
    try:
        windows(lambda h, x: (torch.tanh(cell(h) + x),) * 2, torch.zeros(B, H), torch.ones(T, B, H))
    finally:
        hook.remove()
    assert len(calls) == T and "changes variables" in known(cell).why
