"""A rank of a chain that is killed ends the others with an error; the run goes on as if it had not.

`BPPSA_KILLS` is how many times (1).
"""

import os
import random
import signal
import time
from contextlib import suppress

import pytest
import torch
from support import forked

pytestmark = pytest.mark.slow
SCRIPT = forked.TESTS / "support" / "chain_killed.py"
KILLS, RANKS = int(os.environ.get("BPPSA_KILLS", "1")), 3


def start(folder):
    return [
        forked.start(folder / f"said_{rank}", SCRIPT, folder, RANKS, **variables)
        for rank, variables in enumerate(forked.of_ranks(RANKS))
    ]


def began(folder, processes):
    """Waits until all train."""
    end = time.monotonic() + 120
    while not all((folder / f"began_{rank}").exists() for rank in range(RANKS)):
        assert time.monotonic() < end and all(p.exitcode is None for p in processes)
        time.sleep(0.01)
    return time.monotonic()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights of a run that nobody killed, and how long it trained."""
    folder = tmp_path_factory.mktemp("whole")
    processes = start(folder)
    since = began(folder, processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return torch.load(folder / "weights.pt", weights_only=True), time.monotonic() - since


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_killed_rank(tmp_path, whole, kill):
    weights, seconds = whole
    drawn = random.Random(kill)
    processes = start(tmp_path)
    try:
        since = began(tmp_path, processes)
        time.sleep(drawn.uniform(0, seconds) * 0.8)
        victim = drawn.randrange(RANKS)
        with suppress(ProcessLookupError):  # on a machine that was busier before, all have ended
            os.kill(processes[victim].pid, signal.SIGKILL)
        killed = time.monotonic()
        for process in processes:
            process.join(40)
        assert time.monotonic() - killed < 30, "the others did not end in time"
        others = [rank for rank in range(RANKS) if rank != victim]
        ended = (tmp_path / "weights.pt").exists()
        if not ended:
            assert all(processes[rank].exitcode for rank in others)
            said = "".join((tmp_path / f"said_{rank}").read_text() for rank in others)
            assert "Error" in said and since
    finally:
        for process in processes:
            forked.kill(process)
    if not ended:
        assert not list(tmp_path.glob("*.tmp*"))
        for process in (again := start(tmp_path)):
            process.join(120)
        assert not any(process.exitcode for process in again)
    found = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert all(torch.equal(found[name], t) for name, t in weights.items())
