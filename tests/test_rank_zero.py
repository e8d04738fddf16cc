"""One rank says it: with Lightning, and where it is installed but nobody imported it."""

import logging
import warnings

import pytest
import torch
from lightning_utilities.core import rank_zero
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning import _rank_zero


@pytest.fixture
def not_imported(monkeypatch):
    """Lightning tells `lightning_utilities` its rank when it is imported; unset, that raises."""
    monkeypatch.delattr(rank_zero.rank_zero_only, "rank", raising=False)
    with pytest.raises(RuntimeError, match="needs to be set"):
        rank_zero.rank_zero_warn("nobody hears this")


@pytest.mark.usefixtures("not_imported")
def test_an_emptied_layer_is_warned_of_without_lightning():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    prune.custom_from_mask(model[0], "weight", torch.zeros(4, 3, 1, 1))
    with pytest.warns(UserWarning, match="Pruning has left no weight"):
        bl.attach(model)


@pytest.mark.usefixtures("not_imported")
@pytest.mark.parametrize("rank", [None, "0", "1"])
def test_rank_zero_alone(rank, monkeypatch, caplog):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.INFO):
        warnings.simplefilter("always")
        _rank_zero.rank_zero_warn("careful")
        _rank_zero.rank_zero_info("look")
        found = _rank_zero.rank_zero_only(lambda x: x + 1)(1)
    zero = rank != "1"
    assert [str(w.message) for w in warned] == ["careful"] * zero
    assert [record.getMessage() for record in caplog.records] == ["look"] * zero
    assert found == (2 if zero else None)


def test_with_lightning_it_is_lightnings(monkeypatch):
    monkeypatch.setattr(rank_zero.rank_zero_only, "rank", 3, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _rank_zero.rank_zero_warn("careful")
    assert _rank_zero.rank_zero_only(lambda: 1)() is None
