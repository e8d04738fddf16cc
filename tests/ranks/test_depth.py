"""Stacks whose layers lie on several ranks give what one process gives."""

import pytest
from support import forked

SCRIPT = forked.TESTS / "support" / "depth_checks.py"
CHECKS = (
    "whole", "parts", "rounds", "unsound", "too_large", "masks", "at_random", "refused",
    "second_backward", "checkpointed", "images",
)  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks(tmp_path, ranks):
    """All checks of `support/depth_checks.py`, in one start of processes."""
    said = forked.run(tmp_path, SCRIPT, ranks, *CHECKS, ranks=ranks, timeout=240)
    for check in CHECKS:
        assert said.count(f"{check}: fine") == ranks


def test_a_rank_that_dies(tmp_path):
    """The others end with an error that names the stack and the rank."""
    with pytest.raises(AssertionError, match=r"chain: rank [02] waited for .*rank"):
        forked.run(tmp_path, SCRIPT, 3, "dies", ranks=3, timeout=60)
