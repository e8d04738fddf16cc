"""What all tests share."""

import pytest

from bppsa_lightning.planner import recurrent


@pytest.fixture(autouse=True)
def every_size_is_scanned(monkeypatch):
    """Tests scan the sizes that the planner would leave to PyTorch: results count there."""
    monkeypatch.setattr(recurrent, "_stock_is_faster", lambda *size: False)
    monkeypatch.setattr(recurrent, "_why_cudnn", lambda *size: None)
