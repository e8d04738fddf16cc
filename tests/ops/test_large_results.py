"""Memory of large results: kept for the next ones, never that of a live one, and not for ever."""

import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import bppsa_lightning as bl

MEBIBYTE = 1 << 20


def result(mebibytes):
    """A large result: the states of so many units over one step, alone."""
    x = torch.zeros(1, 1, mebibytes * MEBIBYTE // 4)
    return bl.ops.indrnn(x, None, x[0, 0])[0]


@pytest.fixture
def _nothing_kept():
    """What other tests have freed goes back to the system, for one that takes nearly all room."""
    result(510)


@pytest.mark.usefixtures("_nothing_kept")
@pytest.mark.parametrize("mebibytes", [1, 3, 8])
def test_the_next_one_has_the_memory_of_one_that_was_freed(mebibytes):
    first = result(mebibytes)
    place = first.data_ptr()
    assert place % (2 * MEBIBYTE) == 0
    second = result(mebibytes)
    assert second.data_ptr() != place
    view = first[..., :10]
    del first
    assert result(mebibytes).data_ptr() != place  # a view holds it
    del view
    assert result(mebibytes).data_ptr() == place


@pytest.mark.usefixtures("_nothing_kept")
def test_one_of_another_size_does_not_waste_it():
    place = result(120).data_ptr()
    assert result(8).data_ptr() != place
    assert result(110).data_ptr() == place


def test_numbers_are_those_of_each_call():
    torch.manual_seed(0)
    module = bl.nn.LSTM(16, 64, num_layers=2)
    inputs = [torch.randn(300, B, 16) for B in (40, 70, 40, 90)]
    kept = [module(x)[0] for x in inputs]
    again = [module(x)[0] for x in reversed(inputs)]
    for a, b in zip(kept, reversed(again), strict=True):
        assert torch.equal(a, b)


def test_from_several_threads():
    wrong = []

    def work(number):
        for i in range(20):
            held = [result(4 + (i + j) % 3).fill_(number) for j in range(3)]
            wrong.extend(bool((t != number).any()) for t in held)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 4 * 20 * 3 and not any(wrong)


def test_as_any_tensor():
    with torch.inference_mode():
        assert result(8).is_inference()
    t = result(8).fill_(3)
    assert t.is_contiguous() and t.is_shared() is False
    assert torch.equal(t.clone(), t) and torch.equal(torch.from_numpy(t.numpy()), t)
    assert t.share_memory_().is_shared() and bool((t == 3).all())


def _send(queue):
    queue.put(float(result(8).fill_(5).sum()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.usefixtures("_nothing_kept")
def test_after_a_fork():
    place = result(8).data_ptr()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_send, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == 5 * 8 * MEBIBYTE / 4
    process.join(60)
    t = result(8)
    assert t.data_ptr() == place


MOST = """
import resource, torch
from tests_result import result
def now():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20
result(8)
before = now()
for mebibytes in {sizes}:
    result(mebibytes).fill_(1)
print(now() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the process's memory")
@pytest.mark.parametrize(
    ("sizes", "most"),
    [("range(60, 400, 60)", 612), ("[600]", 100), ("[400] + [8] * 300", 100)],
    ids=["all together", "one too large", "one that is not wanted again"],
)
def test_how_much_is_kept(sizes, most, tmp_path):
    (tmp_path / "tests_result.py").write_text(Path(__file__).read_text())
    script = MOST.format(sizes=sizes)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert int(done.stdout) < most
