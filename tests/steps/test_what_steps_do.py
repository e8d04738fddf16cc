"""bl.scan: what a step may do, and what becomes of it then."""

import functools
import warnings

import torch
from support.scans import case, known, windows
from support.windows import leaves, loop
from torch import nn

from bppsa_lightning.steps import scans_of
from experiments.benchmarks.loops import CELLS, first_state, inputs_of


class TestSteps:
    """What a step may do, and what becomes of it then."""

    def check(self, step, module, reason=None, T=600, H=6, I=6):
        torch.manual_seed(1)
        init, xs = leaves(torch.randn(2, H)), leaves(torch.randn(T, 2, I))
        carry, ys = windows(step, init, xs)
        seen = known(module)
        if reason is not None:
            assert seen.cut is None
            assert reason in seen.why
        else:
            assert seen.cut is not None, seen.why
        return init, xs, carry, ys

    def test_a_tensor_with_a_history_gets_its_gradient(self):
        cell, scale = nn.GRUCell(6, 6), nn.Parameter(torch.zeros(6))
        found = []
        for walk in (windows, loop):
            torch.manual_seed(2)
            weight = scale.exp() * 0.7  # computed once, read in each step

            def step(h, x, weight=weight):
                h = cell(x, h * weight)
                return h, h

            h, xs = torch.randn(2, 6), torch.randn(300, 2, 6)
            walk(step, h, xs)[1].square().sum().backward()
            found.append(scale.grad.clone())
            scale.grad = None
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)

    def test_frozen_parameters_get_none(self):
        cell = nn.GRUCell(6, 6)
        cell.weight_hh.requires_grad_(False)
        *_, ys = self.check(lambda h, x: (cell(x, h),) * 2, cell)
        ys.sum().backward()
        assert cell.weight_hh.grad is None
        assert cell.weight_ih.grad is not None

    def test_a_state_may_be_changed_in_place(self):
        cell = nn.Linear(6, 6)

        def step(h, x):
            h.mul_(0.5).add_(cell(x).tanh())
            return h, h.clone()

        init, xs, _, ys = self.check(step, cell)
        true = loop(lambda h, x: (h * 0.5 + cell(x).tanh(),) * 2, init, xs)[1]
        torch.testing.assert_close(ys, true)

    def test_batch_norm_mixes_samples_and_is_a_loop(self):
        norm = nn.BatchNorm1d(6)
        norm.eval()
        self.check(lambda h, x: (norm(0.5 * h + x),) * 2, norm)
        norm.train()  # the same step, later
        before = norm.num_batches_tracked.item()
        self.check(lambda h, x: (norm(0.5 * h + x),) * 2, norm, "changes tensors of its own")
        assert norm.num_batches_tracked == before + 600  # the loop's, and none of the look's

    def test_mixed_samples_are_seen(self):
        cell = nn.Linear(6, 6)
        mix = lambda h, x: (cell(x) + 0.5 * h - h.mean(0),) * 2  # noqa: E731
        self.check(mix, cell, "mixes samples")

    def test_random_numbers_are_seen_and_left_as_the_loop_draws_them(self):
        cell = nn.Linear(6, 6)
        step = lambda h, x: (0.5 * h + nn.functional.dropout(cell(x)),) * 2  # noqa: E731
        h, xs = torch.zeros(2, 6), torch.randn(300, 2, 6)
        torch.manual_seed(3)
        found = windows(step, h, xs)[1]
        torch.manual_seed(3)
        assert torch.equal(found, loop(step, h, xs)[1])
        assert "random numbers" in known(cell).why

    def test_hooks_of_a_parameter_are_called_once(self):
        cell, seen = nn.Linear(6, 6), []
        cell.weight.register_hook(lambda g: seen.append(g))
        *_, ys = self.check(lambda h, x: (0.5 * h + cell(x),) * 2, cell, "has hooks")
        ys.sum().backward()
        assert len(seen) == 1

    def test_integrators_are_loops(self):
        cell = nn.Linear(6, 6)
        init, xs, _, ys = self.check(lambda h, x: (h + cell(x),) * 2, cell, "remembers more than")
        assert torch.equal(ys, loop(lambda h, x: (h + cell(x),) * 2, init, xs)[1])

    def test_a_counter_is_a_loop(self):
        cell = nn.Linear(6, 6)
        step = lambda s, x: ((0.5 * s[0] + cell(x), s[1] + 1), s[0])  # noqa: E731
        (_, count), _ = windows(
            step, (torch.zeros(2, 6), torch.zeros(2, dtype=int)), torch.ones(300, 2, 6)
        )
        assert count.tolist() == [300, 300]

    def test_compiled_steps(self):
        cell = CELLS["AUGRU"](5, 9)
        step = torch.compile(cell, backend="aot_eager")
        init, xs = leaves(first_state(cell, 2)), leaves(inputs_of(cell, 900, 2, 5))
        carry, ys = windows(step, init, xs)
        assert known(cell).cut is not None, known(cell)
        ys.sum().backward()
        got = [p.grad for p in cell.parameters()]
        cell.zero_grad()
        true = loop(cell, init, xs)
        true[1].sum().backward()
        torch.testing.assert_close(ys, true[1], rtol=1e-4, atol=1e-5)
        for a, p in zip(got, cell.parameters(), strict=True):
            torch.testing.assert_close(a, p.grad, rtol=1e-3, atol=1e-3)

    def test_steps_of_one_line_with_other_numbers_are_other_recurrences(self):
        cell = nn.Linear(6, 6)

        def decaying(by, h, x):
            h = by * h + cell(x)
            return h, h

        def made(by):
            return lambda h, x: decaying(by, h, x)

        h, xs = torch.zeros(2, 6), torch.randn(900, 2, 6)
        for make in (made, lambda by: functools.partial(decaying, by)):
            for by in (0.5, 0.8, 0.5):
                windows(make(by), h, xs)
        seen = scans_of(cell.parameters())
        assert sorted(k.memory.calls for k in seen) == [1, 1, 2, 2]
        assert sorted(k.memory.warm for k in seen)[1] < sorted(k.memory.warm for k in seen)[2]

    def test_under_autocast_gradients_arrive(self):
        """Autocast keeps casts of weights; one that the look made has no gradient.

        (The loop adds up gradients of all steps in bfloat16: it is a third off.)
        """
        grads = []
        for walk, dtype in ((windows, torch.bfloat16), (loop, torch.float32)):
            cell, init, xs = case(CELLS["AUGRU"], 1024, 2)
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                ys = walk(cell, init, xs)[1]
            ys.float().sum().backward()
            grads.append([p.grad for p in cell.parameters()])
            assert walk is loop or known(cell).cut is not None
        for a, b in zip(*grads, strict=True):
            assert (a - b).norm() < 0.05 * b.norm()

    def test_without_gradients(self):
        cell = nn.GRUCell(6, 6)
        step = lambda h, x: (cell(x, h * 0.9),) * 2  # noqa: E731
        h, xs = torch.randn(2, 6), torch.randn(300, 2, 6)
        true = loop(step, h, xs)[1]
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                ys = windows(step, h, xs)[1]
            assert not ys.requires_grad
            torch.testing.assert_close(ys, true, rtol=1e-4, atol=1e-5)

    def test_inside_of_a_transform_it_is_the_loop(self):
        cell = nn.GRUCell(3, 3)
        step = lambda h, x: (cell(x, h),) * 2  # noqa: E731
        h, xs = torch.zeros(4, 2, 3), torch.randn(4, 200, 2, 3)
        with warnings.catch_warnings():  # of PyTorch's gru_cell
            warnings.simplefilter("ignore")
            found = torch.func.vmap(lambda h, x: windows(step, h, x)[1])(h, xs)
        torch.testing.assert_close(found[1], loop(step, h[1], xs[1])[1], rtol=1e-4, atol=1e-5)
