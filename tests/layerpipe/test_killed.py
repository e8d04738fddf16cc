"""A killed process ends the others with an error; the run goes on from its last checkpoint."""

import time

import pytest
import torch
from support import forked

pytestmark = pytest.mark.slow
SCRIPT = forked.TESTS / "support" / "layerpipe_killed.py"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights of a run that nobody killed."""
    folder = tmp_path_factory.mktemp("whole")
    forked.run(folder, SCRIPT, folder, -1, 0, ranks=2)
    return torch.load(folder / "weights.pt", weights_only=True)


@pytest.mark.parametrize("rank", [0, 1], ids=["last_stage", "first_stage"])
def test_a_killed_process(tmp_path, whole, rank):
    """Lightning started the other one."""
    start, said = time.monotonic(), tmp_path / "said"
    killed = forked.start(said, SCRIPT, tmp_path, 1, rank)
    try:
        killed.join(120)
        assert killed.exitcode and time.monotonic() - start < 60
    finally:
        forked.kill(killed)
    if rank:  # whoever sees it first: the stage that waits for it, or Lightning, which started it
        waited, started = ["RuntimeError", "remote worker"], ["Child process", "code -9"]
        assert any(all(word in said.read_text() for word in words) for words in (waited, started))
    assert not (tmp_path / "weights.pt").exists() and (tmp_path / "last.ckpt").exists()
    forked.run(tmp_path, SCRIPT, tmp_path, -1, 0, ranks=2)
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert weights.keys() == whole.keys()
    assert all(torch.equal(weights[name], whole[name]) for name in whole)
