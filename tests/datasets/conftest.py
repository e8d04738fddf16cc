"""What the tests of datamodules share."""

import pytest

from bppsa_lightning.datasets import irmas_cache


@pytest.fixture
def fake(monkeypatch):
    """Features that cost nothing."""
    from support.irmas_data import fake_extract  # skips where there is no soundfile

    monkeypatch.setattr(irmas_cache, "extract", fake_extract)


@pytest.fixture
def corpus(tmp_path, fake):
    """A folder of files that stand for recordings."""
    from support.irmas_corpus import write_corpus
    from support.irmas_data import write_fake

    write_corpus(tmp_path, recordings=4, excerpts=2, write=write_fake)
    return tmp_path
