"""A killed process ends the others with an error; the run goes on from its last checkpoint."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]


def run(folder, epoch=-1, rank=0):
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    for name in ("MASTER_PORT", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    script = TESTS / "support" / "layerpipe_killed.py"
    command = [sys.executable, script, folder, str(epoch), str(rank)]
    return subprocess.run(
        command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights of a run that nobody killed."""
    folder = tmp_path_factory.mktemp("whole")
    done = run(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "weights.pt", weights_only=True)


@pytest.mark.parametrize("rank", [0, 1], ids=["last_stage", "first_stage"])
def test_a_killed_process(tmp_path, whole, rank):
    start = time.monotonic()
    killed = run(tmp_path, epoch=1, rank=rank)
    assert killed.returncode != 0 and time.monotonic() - start < 60
    if rank:
        assert "RuntimeError" in killed.stderr and "remote worker" in killed.stderr
    assert not (tmp_path / "weights.pt").exists() and (tmp_path / "last.ckpt").exists()
    resumed = run(tmp_path)
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert weights.keys() == whole.keys()
    assert all(torch.equal(weights[name], whole[name]) for name in whole)
