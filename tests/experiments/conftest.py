"""What the experiments' tests share: `experiments` is found, here and by what they start."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# As `python -m pytest` has it; last, so that an installed bppsa_lightning comes first.
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


@pytest.fixture(scope="session")
def environment():
    """An environment in which a process finds `experiments`, whatever folder it runs in."""
    paths = [os.environ.get("PYTHONPATH"), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
