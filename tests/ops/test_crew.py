"""The crew of the CPU kernels: torch's threads together, or the caller alone; the same bits.

B batch, T steps, H hidden.
"""

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import fingerprints
import pytest
import torch
from torch import nn

import bppsa_lightning as bl

BUSY = "import os\nme = os.getppid()\nwhile os.getppid() == me:\n  for _ in range(10**6): pass"


def jacobians():
    """Larger ones than fingerprints.jacobians: worth several threads."""
    J = bl.jacobians
    weight, image = fingerprints.random(16, 8, 3, 3), fingerprints.random(8, 40, 40)
    yield "conv2d", lambda: [J.conv2d(weight, (40, 40), 1, 1)]
    yield "max_pool2d", lambda: [J.max_pool2d(image, 3, 2, 1)]
    yield "tanh", lambda: [J.tanh(fingerprints.random(32, 40, 40))]
    yield "linear", lambda: [J.linear(fingerprints.random(300, 400))]


FAMILIES = {  # and the cases of each
    fingerprints.recurrent_operators: slice(0, None, 7),
    fingerprints.attached_layers: slice(0, None, 11),
    fingerprints.scans: slice(0, None, 3),
    fingerprints.depth: slice(1, 3),  # products of Jacobians, a pruned network
    jacobians: slice(None),
}


@contextmanager
def crew(mode, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.ops.bppsa.set_crew(mode)
    try:
        yield
    finally:
        torch.ops.bppsa.set_crew("adaptive")
        torch.set_num_threads(before)


@contextmanager
def busy_processes(count):
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def regions():
    """So far, on this thread: together, alone."""
    return torch.ops.bppsa.crew_regions()


def layer(T=300):
    """Outputs and gradients of a layer of H = 20 over B = 16."""
    torch.manual_seed(0)
    module = nn.GRU(1, 20)
    bl.attach(module, "linear")
    x, grad = torch.rand(T, 16, 1), torch.randn(T, 16, 20)

    def step():
        module.zero_grad()
        output, _ = module(x)
        output.backward(grad)
        return [output.detach(), *(p.grad for p in module.parameters())]

    return step


def digests(family, mode, threads):
    with crew(mode, threads):
        before = regions()
        found = {}
        for name, run in list(family())[FAMILIES[family]]:
            torch.manual_seed(0)
            found[name] = fingerprints.digest(run())
        worked = [b - a for a, b in zip(before, regions(), strict=True)]
    assert worked[mode == "together"] == 0 and worked[mode == "alone"] > 0
    return found


@pytest.mark.parametrize("threads", [2, 3, 4, 7])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_the_same_bits_together_and_alone(family, threads):
    alone, together = (digests(family, mode, threads) for mode in ("alone", "together"))
    assert [name for name in alone if alone[name] != together[name]] == []


@pytest.mark.parametrize("threads", [2, 7])
def test_numbers_copied_together_and_alone(threads):
    weight = torch.randn(50_000)
    index = torch.randperm(50_000)[:40_000].sort().values
    found = []
    for mode in ("alone", "together"):
        with crew(mode, threads):
            values = torch.ops.bppsa.take_surviving(weight, index)
            found.append((values, torch.ops.bppsa.put_surviving(values, index, 50_000)))
    for values, back in found:
        assert torch.equal(values, weight[index])
        assert torch.equal(back[index], values) and back.count_nonzero() == values.count_nonzero()


def test_one_thread_has_no_regions():
    with crew("together", 1):
        before = regions()
        layer()()
    assert regions() == before


@pytest.mark.parametrize("threads", [8, 64])
def test_more_threads_than_cores_give_the_same_bits_in_every_run(threads):
    step = layer()
    with crew("adaptive", threads):
        runs = [fingerprints.digest(step()) for _ in range(20)]
    with crew("alone", threads):
        assert set(runs) == {fingerprints.digest(step())}


def test_several_callers_at_once():
    found = []

    def call(step):
        with_each = [fingerprints.digest(step()) for _ in range(10)]
        found.append((set(with_each), sum(regions()) > 0))

    with crew("adaptive", 2):
        wanted = {fingerprints.digest(layer()())}
        callers = [threading.Thread(target=call, args=(layer(),)) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert found == [(wanted, True)] * 3


@pytest.mark.slow
def test_a_caller_beside_busy_processes_works_alone_most_of_the_time():
    step = layer()

    def worked(seconds):
        before, end = regions(), time.monotonic() + seconds
        while time.monotonic() < end:
            step()
        return [b - a for a, b in zip(before, regions(), strict=True)]

    with crew("adaptive", 2), busy_processes(2 * len(os.sched_getaffinity(0))):
        worked(1)
        together, alone = worked(3)
    assert alone > together


def test_a_mode_that_does_not_exist():
    with pytest.raises(RuntimeError, match="mode: found 'some', wanted 'adaptive'"):
        torch.ops.bppsa.set_crew("some")
