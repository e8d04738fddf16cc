"""bl.scan: the results of the loop, for any step, whatever it forgets."""

import math

import pytest
import torch
from support.scans import case, in_double, known, windows
from support.windows import assert_as_exact, far, leaves, loop, run
from torch import nn
from torch.utils import _pytree as pytree

import bppsa_lightning as bl
from experiments.benchmarks.loops import CELLS, first_state

each_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)


@each_cell
@pytest.mark.parametrize("B", [1, 3])
def test_windows_are_as_exact_as_the_loop(cell, B):
    step, init, xs = case(cell, 1200, B)
    found = run(windows, step, init, xs)
    assert known(step).cut is not None, known(step)
    walk = run(loop, step, leaves(init), leaves(xs))
    true = run(loop, in_double(step), *leaves((init, xs), torch.float64))
    assert_as_exact(found, [walk], true)


@each_cell
def test_in_float64_windows_equal_the_loop(cell):
    step, init, xs = case(cell, 2000, 2)
    step, (init, xs) = step.double(), leaves((init, xs), torch.float64)
    found = run(windows, step, init, xs)
    assert known(step).cut is not None, known(step)
    true = run(loop, step, *leaves((init, xs)))
    assert max(max(pair) for pair in far(found, true)) < 1e-10


def test_what_is_never_forgotten_is_repaired_once_and_then_left_to_the_loop():
    """Pendulums that wind over the top: few, so that a look does not see them."""
    torch.manual_seed(0)
    step = CELLS["Pendulum"](5, 64)
    init, xs = leaves(tuple(4 * s for s in first_state(step, 4))), leaves(torch.randn(1024, 4, 5))
    found = run(windows, step, init, xs)
    assert known(step).cut is not None
    assert known(step).memory.report.passes > 2
    walk = run(loop, step, *leaves((init, xs)))
    true = run(loop, in_double(step), *leaves((init, xs), torch.float64))
    assert_as_exact(found, [walk], true)
    windows(step, init, xs)
    assert known(step).why == "states of its windows did not meet"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_random_recurrences(seed):
    """Any cell, any size, also chaotic ones and losses that read one step in fifty."""
    torch.manual_seed(seed)
    cell = list(CELLS.values())[seed % len(CELLS)]
    T, B = int(2 ** (5 + 5 * torch.rand(()).item())), int(torch.randint(1, 5, ()))
    I, H = int(torch.randint(1, 6, ())), int(torch.randint(1, 24, ()))
    step, init, xs = case(cell, T, B, I, H, seed)
    gain = 1.0 if seed % 3 else 4 * torch.rand(()).item()
    with torch.no_grad():
        for p in step.parameters():
            p.mul_(gain)
    read = (torch.rand(T) < 0.02).float() if seed % 4 == 0 else torch.ones(T)
    weigh = lambda w: w * read.to(w.dtype).reshape(-1, *[1] * (w.dim() - 1))  # noqa: E731
    found = run(windows, step, init, xs, weigh)
    walks = [run(loop, step, *leaves((init, xs)), weigh)]
    true = run(loop, in_double(step), *leaves((init, xs), torch.float64), weigh)
    if max(max(pair) for pair in far(walks[0], true)) < 1e-2:  # else the walk itself is lost
        assert_as_exact(found, walks, true, slack=1e-6)


class TestArguments:
    def test_linear_is_the_loop_to_the_bit(self):
        step, init, xs = case(CELLS["GRUD"], 40, 2)
        found = run(lambda *a: bl.scan(*a, algorithm="linear"), step, init, xs)
        true = run(loop, step, *leaves((init, xs)))
        assert all(torch.equal(a, b) for a, b in zip(found[:3], true[:3], strict=True))

    def test_reverse(self):
        step, init, xs = case(CELLS["RITS"], 300, 2)
        carry, ys = windows(step, init, xs, reverse=True)
        turned = pytree.tree_map(lambda x: x.flip(0), xs)
        true_carry, true_ys = loop(step, init, turned)
        for a, b in zip(ys, true_ys, strict=True):
            torch.testing.assert_close(a, b.flip(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(carry, true_carry, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("algorithm", ["linear", "speculative"])
    def test_reset(self, algorithm):
        step, init, xs = case(CELLS["AUGRU"], 300, 3)
        reset = torch.rand(300, 3) < 0.02
        carry, ys = bl.scan(step, init, xs, algorithm=algorithm, reset=reset)

        def resetting(state, both):
            x, now = both
            return step(tuple(torch.where(now[:, None], 0.0, s) for s in state), x)

        true_carry, true_ys = loop(resetting, init, (xs, reset))
        torch.testing.assert_close(ys, true_ys, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(carry, true_carry, rtol=1e-4, atol=1e-5)

    def test_trees(self):
        weight = nn.Parameter(torch.rand(4))

        def step(carry, x):
            h = carry["h"] * 0.5 + weight * x["a"][0] + x["b"]
            return {"h": h}, [h, {"twice": 2 * h}]

        xs = {"a": [torch.randn(300, 2, 4)], "b": torch.randn(300, 2, 4)}
        carry, (h, more) = windows(step, {"h": torch.zeros(2, 4)}, xs)
        assert set(carry) == {"h"}
        assert h.shape == (300, 2, 4)
        torch.testing.assert_close(more["twice"], 2 * h)
        assert known(nn.ParameterList([weight])).cut is not None

    def test_y_may_be_none(self):
        carry, ys = windows(
            lambda h, x: (h * 0.5 + x, None), torch.zeros(2, 3), torch.ones(300, 2, 3)
        )
        assert ys is None
        torch.testing.assert_close(carry, torch.full((2, 3), 2.0))

    @pytest.mark.parametrize("algorithm", ["speculative", "linear", "auto"])
    @pytest.mark.parametrize(
        "change, error, words",
        [
            ({"algorithm": "newton"}, ValueError, "algorithm: found 'newton', wanted one of"),
            ({"init": (1.0,)}, TypeError, "init: found a float in it, wanted tensors"),
            ({"xs": []}, ValueError, "xs: found a tree without tensors"),
            ({"xs": torch.zeros(0, 2, 3)}, ValueError, r"xs: found tensors \(0, 2, 3\)"),
            ({"xs": (torch.zeros(3, 2), torch.zeros(4, 2))}, ValueError, "with one T >= 1"),
            ({"step": lambda h, x: h}, TypeError, "found Tensor as its result"),
            ({"step": lambda h, x: ((h, h), x)}, TypeError, "step: found the state"),
            ({"step": lambda h, x: (h[:1], x)}, ValueError, r"step: found a state of \(1, 3\)"),
            ({"reset": torch.zeros(9, 2)}, TypeError, "reset: found torch.float32"),
            ({"reset": torch.zeros(8, 2, dtype=torch.bool)}, ValueError, "with T = 9"),
        ],
    )
    def test_errors_name_the_argument(self, change, error, words, algorithm):
        arguments = {
            "step": lambda h, x: (h + x, h),
            "init": torch.zeros(2, 3),
            "xs": torch.zeros(9, 2, 3),
            "algorithm": algorithm,
        }
        arguments |= change
        step, init, xs = (arguments.pop(name) for name in ("step", "init", "xs"))
        with pytest.raises(error, match=words):
            bl.scan(step, init, xs, **arguments)


class TestBackward:
    def scanned(self, T=400):
        cell = nn.GRUCell(6, 6)
        init, xs = leaves(torch.randn(2, 6)), leaves(torch.randn(T, 2, 6))
        return cell, xs, windows(lambda h, x: (cell(x, h * 0.9),) * 2, init, xs)[1]

    def test_twice_with_retain_graph(self):
        cell, xs, ys = self.scanned()
        ys.sum().backward(retain_graph=True)
        once = xs.grad.clone()
        ys.sum().backward()
        torch.testing.assert_close(xs.grad, 2 * once)
        assert cell.weight_ih.grad is not None
        with pytest.raises(RuntimeError, match="second time"):
            ys.sum().backward()

    def test_an_input_that_was_changed_since_is_an_error(self):
        cell = nn.GRUCell(6, 6)
        xs = torch.randn(300, 1, 6)
        ys = windows(lambda h, x: (cell(x, h * 0.9),) * 2, torch.zeros(1, 6), xs)[1]
        xs.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            ys.sum().backward()

    def test_outputs_may_be_changed_in_place(self):
        _, xs, ys = self.scanned()
        ys.mul_(2).sum().backward()
        assert math.isfinite(xs.grad.sum())

    def test_a_loss_of_the_last_step(self):
        cell, xs, ys = self.scanned()
        ys[-1].sum().backward()
        assert xs.grad[-1].abs().max() > 0
        seen = known(cell)
        assert seen.cut is not None


class TestCells:
    """nn.RNNCell, nn.GRUCell and nn.LSTMCell as they are: fused kernels."""

    @pytest.mark.parametrize("algorithm", ["auto", "linear", "speculative"])
    @pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_results_are_the_loop_s(self, kind, algorithm, reverse):
        torch.manual_seed(0)
        cell = kind(5, 7)
        h = torch.randn(3, 7)
        init, xs = (
            leaves((h, torch.randn(3, 7)) if kind is nn.LSTMCell else h),
            leaves(torch.randn(50, 3, 5)),
        )

        def step(carry, x):
            after = cell(x, carry)
            return after, after[0] if isinstance(after, tuple) else after

        walk = lambda c, i, x: bl.scan(c, i, x, algorithm=algorithm, reverse=reverse)  # noqa: E731
        found = run(walk, cell, init, xs)
        init, xs = leaves((init, xs))
        for p in cell.parameters():
            p.grad = None
        carry, ys = loop(step, init, xs.flip(0) if reverse else xs)
        ys = ys.flip(0) if reverse else ys
        torch.testing.assert_close(found[0], ys, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[1], pytree.tree_leaves(carry)[0], rtol=1e-4, atol=1e-5)

    def test_resets_and_cells_of_the_user_s_own(self):
        class Own(nn.GRUCell):
            pass

        reset = torch.rand(200, 3) < 0.1
        for kind in (nn.GRUCell, Own):
            torch.manual_seed(0)
            cell, h, xs = kind(5, 7), torch.randn(3, 7), torch.randn(200, 3, 5)
            _, ys = bl.scan(cell, h, xs, reset=reset)

            def step(h, both, cell=cell):
                h = cell(both[0], torch.where(both[1][:, None], 0.0, h))
                return h, h

            torch.testing.assert_close(ys, loop(step, h, (xs, reset))[1], rtol=1e-4, atol=1e-5)


def test_explain_shows_what_became_of_scans():
    cell = nn.GRUCell(6, 6)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, xs):
            return bl.scan(self.step, xs.new_zeros(2, 6), xs)[1]

        def step(self, h, x):
            h = self.cell(x, h * 0.9)
            return h, h

    model = Model()
    model(torch.randn(1000, 2, 6))
    assert "Model.step, 1000 steps, batch 2: " in bl.explain(model)
    assert "all met" in bl.explain(model)


def test_two_runs_decide_the_same():
    """What is learned depends on what is seen, and on nothing else."""
    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        cell = nn.GRUCell(3, 8)
        optimizer = torch.optim.Adam(cell.parameters(), 0.02)

        def step(h, x, cell=cell):
            h = cell(x, h)
            return h, h

        for _ in range(12):
            xs = torch.randn(256, 2, 3)
            ys = windows(step, torch.zeros(2, 8), xs)[1]
            optimizer.zero_grad()
            (ys - xs.cumsum(0)[..., :1].tanh()).square().mean().backward()
            optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in cell.parameters()]))
    assert torch.equal(*ends)


WAYS = [{}, *({"algorithm": name} for name in ("linear", "chunked", "speculative"))]


@pytest.mark.parametrize("options", [*WAYS, {"checkpoint": True}, {"memory": 10_000}], ids=str)
def test_a_dict_comes_back_with_its_keys_in_another_order(options):
    """Of its leaves one requires a gradient from the second step on."""
    weight = (torch.randn(4, 4, dtype=torch.float64) * 0.3).requires_grad_()
    xs = torch.randn(300, 2, 4, dtype=torch.float64)
    init = {"k": torch.ones_like(xs[0]), "h": torch.zeros_like(xs[0])}

    def step(carry, x):
        h = torch.tanh(carry["k"] @ weight + x)
        return {"h": h, "k": torch.tanh(carry["h"]) * 0.5}, carry["h"]

    found = []
    for scan in (loop, bl.scan):
        carry, ys = scan(step, init, xs, **(options if scan is bl.scan else {}))
        assert ys.requires_grad
        found.append(torch.autograd.grad(ys.square().sum() + carry["k"].sum(), weight)[0])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_step_that_changes_its_x_is_a_loop(options):
    weight = torch.full((4,), 0.5, dtype=torch.float64, requires_grad=True)
    xs = torch.randn(300, 2, 4, dtype=torch.float64)

    def step(h, x):
        x.mul_(2)
        return torch.tanh(h * weight + x), h

    found = []
    for scan in (loop, bl.scan):
        given = xs.clone()
        h, ys = scan(step, torch.zeros_like(xs[0]), given, **(options if scan is bl.scan else {}))
        assert torch.equal(given, 2 * xs)
        found.append((h, ys, torch.autograd.grad(ys.square().sum(), weight)[0]))
    torch.testing.assert_close(*found)
    for keep in ({"checkpoint": True}, {"memory": 10_000}):
        with pytest.raises(ValueError, match="it changes its x"):
            bl.scan(step, torch.zeros_like(xs[0]), xs.clone(), **keep)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_complex_carry(options):
    weight = torch.randn(4, dtype=torch.complex128, requires_grad=True)
    xs = torch.randn(300, 2, 4, dtype=torch.complex128)

    def step(h, x):
        return h * weight / (1 + weight.abs()) + x, h.real

    found = []
    for scan in (loop, bl.scan):
        h, ys = scan(step, torch.zeros_like(xs[0]), xs, **(options if scan is bl.scan else {}))
        found.append((h, ys, torch.autograd.grad(ys.square().sum(), weight)[0]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("changes", [False, True])
def test_missing_values_in_inference_mode_are_no_change_of_x(changes):
    """Where tensors have no count of changes: a NaN is not equal to itself."""
    xs = torch.randn(600, 2, 4)
    xs[torch.rand(xs.shape) < 0.2] = xs[0, 0, 0] = math.nan  # the first step is looked at
    weight = nn.Linear(4, 4)

    def step(h, x):
        if changes:
            x.nan_to_num_()
        h = torch.tanh(0.3 * weight(h) + x.nan_to_num())
        return h, h * 1

    with torch.inference_mode():
        found = bl.scan(step, torch.zeros(2, 4), xs.clone())
        torch.testing.assert_close(found, loop(step, torch.zeros(2, 4), xs.clone()))
    assert ("it changes its x" in str(known(weight))) == changes
