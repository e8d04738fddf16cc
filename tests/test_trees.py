"""Lightning under both of its names: one implementation, and nothing imported that is not used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "support" / "trees.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    ["pytorch_lightning_after", "pytorch_lightning_before", "lightning_after", "none", "both"],
)
def test_trainings_with(what):
    if what != "none":
        pytest.importorskip("lightning_fabric")
    run = subprocess.run(
        [sys.executable, str(SCRIPT), what],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
