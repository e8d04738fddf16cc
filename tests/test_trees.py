"""Lightning under both of its names: one implementation, and nothing imported that is not used."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "support" / "trees.py"
NAMES = ["pytorch_lightning_after", "pytorch_lightning_before", "lightning_after", "none", "both"]


@pytest.fixture(scope="module")
def errors():
    """{name: what went wrong}, of all that run here."""
    installed = importlib.util.find_spec("lightning_fabric") is not None
    names = NAMES if installed else ["none"]
    run = subprocess.run(
        [sys.executable, str(SCRIPT), *names],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("what", NAMES)
def test_trainings_with(errors, what):
    if what not in errors:
        pytest.skip("needs pytorch_lightning")
    assert not errors[what]
