"""What all tests share."""

import os

import pytest

from bppsa_lightning.planner import recurrent


@pytest.fixture(scope="session", autouse=True)
def wandb_keeps_its_copies_with_the_tests(tmp_path_factory):
    """Not beside those of the experiments that someone runs here."""
    os.environ["WANDB_DATA_DIR"] = str(tmp_path_factory.mktemp("wandb"))


@pytest.fixture(autouse=True)
def every_size_is_scanned(monkeypatch):
    """Tests scan the sizes that the planner would leave to PyTorch: results count there."""
    monkeypatch.setattr(recurrent, "_stock_is_faster", lambda *size: False)
    monkeypatch.setattr(recurrent, "_why_cudnn", lambda *size: None)
