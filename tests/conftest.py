"""What all tests share."""

import pytest

from bppsa_lightning import planner


@pytest.fixture(autouse=True)
def every_size_is_scanned(monkeypatch):
    """Sizes that the planner leaves to PyTorch for speed are scanned in tests: results count there."""
    monkeypatch.setattr(planner, "_stock_is_faster", lambda *size: False)
