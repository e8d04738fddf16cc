"""Few samples and large weights: each thread takes units, and waits for the others in every step.

T steps, B batch, I input, H hidden.
"""

import statistics
import threading
import time

import pytest
import torch

import bppsa_lightning as bl
from bppsa_lightning import reference

from .test_crew import busy_processes, crew, regions

I = 5  # noqa: E741
GATES = {"rnn": 1, "gru": 3, "lstm": 4, "ligru": 2}
# Large enough for one sample and for several; not whole vectors.
UNITS = {"rnn": 517, "gru": 299, "lstm": 258, "ligru": 366}


def operands(cell, T, B, H, dtype=torch.float32, seed=0, sums=False):
    """x, h0 (and c0), weights and biases, all of which learn."""
    torch.manual_seed(seed)
    GH, states = GATES[cell] * H, 2 if cell == "lstm" else 1
    x = torch.randn(T, B, GH if sums else I, dtype=dtype)
    first = [torch.randn(B, H, dtype=dtype) for _ in range(states)]
    weights = [torch.randn(GH, K, dtype=dtype) / H**0.5 for K in (I, H)]
    biases = [torch.randn(GH, dtype=dtype) for _ in range(2)]
    if sums:
        weights[0] = None
    return [t if t is None else t.requires_grad_() for t in (x, *first, *weights, *biases)]


def step(cell, tensors, grads=None, run=None, **options):
    """Outputs, and gradients of all that learns."""
    run = run or getattr(bl.ops, cell)
    outputs = run(*tensors, **options)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    torch.manual_seed(1)
    grads = grads or [torch.randn_like(o) for o in outputs]
    learning = [t for t in tensors if t is not None and t.requires_grad]
    return [*outputs, *torch.autograd.grad(outputs, learning, grads, allow_unused=True)]


def walked(cell, tensors, reverse=False):
    """The same in float64, step by step."""

    def run(*tensors, reverse):
        found = getattr(reference, cell)(*tensors, reverse=reverse)
        last = 0 if reverse else -1
        return (found[0], found[0][last], found[1][last]) if cell == "lstm" else (
            found, found[last])  # fmt: skip

    exact = [t if t is None else t.detach().double().requires_grad_() for t in tensors]
    torch.manual_seed(1)
    return exact, run


def assert_exact(cell, tensors, threads, **options):
    """The worst error of any result is at most that of rounding each step; same bits alone."""
    with crew("together", threads):
        found = step(cell, tensors, algorithm="linear", **options)
    with crew("alone", threads):
        alone = step(cell, tensors, algorithm="linear", **options)
    assert all(map(torch.equal, found, alone))
    exact, run = walked(cell, tensors)
    torch.manual_seed(1)
    grads = [torch.randn_like(o).double() for o in found[: 3 if cell == "lstm" else 2]]
    wanted = step(cell, exact, grads, run, reverse=options.get("reverse", False))
    scale = 1e-12 if tensors[0].dtype == torch.float64 else 2e-5
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() <= scale * theirs.abs().max()


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("B", [1, 2, 3])
@pytest.mark.parametrize("cell", GATES)
def test_results_are_those_of_the_cell_and_have_the_bits_of_one_thread(cell, B, threads):
    H = UNITS[cell] + (0 if B == 1 else 250)
    assert_exact(cell, operands(cell, 9, B, H), threads)


@pytest.mark.parametrize("T, reverse", [(1, False), (2, True), (300, True)])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_one_step_many_and_backwards(cell, T, reverse):
    assert_exact(cell, operands(cell, T, 1, UNITS[cell]), 2, reverse=reverse)


@pytest.mark.parametrize("cell", GATES)
def test_float64_and_sums_of_the_input(cell):
    assert_exact(cell, operands(cell, 7, 1, UNITS[cell], torch.float64), 2)
    assert_exact(cell, operands(cell, 7, 1, UNITS[cell], sums=True), 2)


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_a_gradient_of_few_steps(cell):
    """Slabs that none reaches are passed over, in the middle and at the end."""
    tensors = operands(cell, 700, 1, UNITS[cell])
    with torch.no_grad():
        for weight in tensors[-4:]:
            weight.mul_(0.2)  # what enters fades
    exact, run = walked(cell, tensors)
    found = []
    for own, layer, options in (
        (tensors, getattr(bl.ops, cell), {"algorithm": "linear"}), (exact, run, {"reverse": False})
    ):  # fmt: skip
        with crew("together", 2):
            output = layer(*own, **options)[0]
            loss = output[600].sum() + output[40].square().sum()
            found.append(torch.autograd.grad(loss, [t for t in own]))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()
    assert not found[0][0][601:].any() and not found[0][0][100:300].any()


def test_an_empty_batch():
    tensors = operands("lstm", 3, 0, 520)
    output, h_n, c_n, *grads = step("lstm", tensors, algorithm="linear")
    assert output.shape == (3, 0, 520) and h_n.shape == c_n.shape == (0, 520)
    assert not any(g.any() for g in grads)


def test_wanted_gradients_alone():
    tensors = operands("gru", 20, 2, 300)
    whole = step("gru", tensors, algorithm="linear")
    for frozen in ([0], [1], [2, 3], [4, 5], [0, 1, 2, 4]):
        some = [t.detach() if i in frozen else t for i, t in enumerate(tensors)]
        found = step("gru", some, algorithm="linear")[2:]
        left = [g for i, g in enumerate(whole[2:]) if i not in frozen]
        assert all(map(torch.equal, found, left))


def test_a_busy_machine_is_not_waited_for_in_every_step():
    """Where threads lose their cores the first goes on alone; later calls begin alone."""
    tensors = [t.detach() for t in operands("lstm", 1000, 1, 258)]

    def seconds(mode):
        with crew(mode, 2):
            start = time.perf_counter()
            found = bl.ops.lstm(*tensors)
            taken = time.perf_counter() - start
        assert all(map(torch.equal, found, wanted))
        return taken

    with crew("together", 2):
        wanted = bl.ops.lstm(*tensors)
    with busy_processes(4):
        pairs = [(seconds("adaptive"), seconds("alone")) for _ in range(15)]
    adaptive, alone = map(statistics.median, zip(*pairs, strict=True))
    assert adaptive < 15 * alone  # 1,000 steps that each waited for a core would take 30 times


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_members_are_left_behind_at_any_step(threads):
    """On a busy machine members stop at other steps in each run; none waits for one that has."""
    tensors = operands("gru", 60, 1, 299)
    with crew("alone", threads):
        wanted = step("gru", tensors, algorithm="linear")
    with crew("together", threads), busy_processes(3):
        for _ in range(25):
            assert all(map(torch.equal, step("gru", tensors, algorithm="linear"), wanted))


def test_several_callers_at_once():
    """Members that come late are not waited for."""
    tensors = operands("gru", 50, 1, 299)
    grads = [torch.randn(50, 1, 299), torch.randn(1, 299)]
    found = []

    def calls():
        own = [t.detach().requires_grad_() for t in tensors]
        with crew("together", 2):
            found.extend(step("gru", own, grads, algorithm="linear") for _ in range(20))

    callers = [threading.Thread(target=calls) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    with crew("alone", 2):
        wanted = step("gru", tensors, grads, algorithm="linear")
    assert len(found) == 80
    assert all(torch.equal(a, b) for run in found for a, b in zip(run, wanted, strict=True))


@pytest.mark.parametrize("H, parted", [(299, True), (64, False)])
def test_which_layers_are_parted(H, parted):
    """One sample takes several threads by its units alone."""
    tensors = operands("gru", 50, 1, H)
    with crew("together", 2), torch.no_grad():
        before = regions()
        bl.ops.gru(*tensors)
        assert regions()[0] - before[0] == parted
