"""The right number of threads, wherever a process comes from.

Regions that several threads share are counted in the kernels themselves: with one thread there is
none. Gradients say that the work was done, and by the same division.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.threads_at_work import worked

SCRIPT = Path(__file__).parent / "support" / "threads_at_work.py"
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def run(*arguments, cores=None, **variables):
    kept = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=kept | variables,
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def of_one():
    """The gradients of one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = worked()
    finally:
        torch.set_num_threads(before)
    assert found["regions"] == 0
    return found["gradients"]


def test_of_set_num_threads(of_one):
    before = torch.get_num_threads()
    try:
        for threads in (2, 1, 2):
            torch.set_num_threads(threads)
            found = worked()
            assert (found["regions"] > 0) == (threads > 1)
            torch.testing.assert_close(found["gradients"], of_one, rtol=1e-3, atol=1e-4)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=TWO_CORES)])
def test_of_the_environment(threads, of_one):
    found = run(OMP_NUM_THREADS=str(threads))
    assert found["threads"] == threads
    assert (found["regions"] > 0) == (threads > 1)
    assert threads > 1 or found["gradients"] == of_one


@pytest.mark.slow
def test_of_the_affinity(of_one):
    found = run(cores={min(os.sched_getaffinity(0))})
    assert (found["threads"], found["regions"]) == (1, 0)
    assert found["gradients"] == of_one


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_use_one_thread(method, of_one):
    for found in run("loader", method):
        assert (found["threads"], found["regions"]) == (1, 0)
        assert found["gradients"] == of_one


def test_a_fork_of_a_process_whose_threads_have_worked(of_one):
    """They are not in the child: it would wait for them forever."""
    found = run("fork", "busy")
    assert found is not None, "the child is stuck"
    assert (found["threads"], found["regions"]) == (1, 0)
    assert found["gradients"] == of_one


@pytest.mark.slow
def test_a_fork_of_a_process_that_has_not_worked_keeps_its_number(of_one):
    found = run("fork", "idle", OMP_NUM_THREADS="2")
    assert found["threads"] == 2 and found["regions"] > 0
