"""What the tests of operators share."""

import pytest

from bppsa_lightning import planner


@pytest.fixture
def keeping(monkeypatch):
    """Sets how much the forward keeps."""
    return lambda keep: monkeypatch.setattr(planner, "saved", lambda *_: keep)
