"""What the tests of operators share."""

from dataclasses import replace

import pytest

from bppsa_lightning import planner


@pytest.fixture
def keeping(monkeypatch):
    """Sets how much the forward keeps."""
    plan = planner.plan
    return lambda keep: monkeypatch.setattr(
        planner, "plan", lambda request: replace(plan(request), saved=keep)
    )
