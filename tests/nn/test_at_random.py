"""Some seeds of `at_random.py`, every cell among them, and whether it sees what it is there for."""

import pytest
from nn import at_random
from support.nn_loops import CELLS

from bppsa_lightning.recurrent.resets import Segments


@pytest.mark.parametrize("seed", range(12))
def test_random_modules_are_the_loops(seed):
    assert not at_random.wrong(seed)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("layout", ["time", "unsorted"])
def test_every_cell_with_resets_is_the_loop(cell, layout):
    proj = 2 if cell == "LSTM" else 0
    fixed = {"T": 13, "B": 3, "H": 5, "both": True, "proj": proj, "states": True, "resets": "some"}
    if cell == "MinGRU":
        fixed["recurrent_dropout"] = 0.0
    assert not at_random.wrong(1, cell=cell, layout=layout, layers=2, **fixed)


@pytest.mark.parametrize("name", ["origin", "final"])
def test_segments_that_begin_or_end_elsewhere_are_wrong(name, monkeypatch):
    right = getattr(Segments, name)
    monkeypatch.setattr(Segments, name, lambda self, *args: right(self, *args)[::-1].copy())
    fixed = {"cell": "GRU", "T": 8, "B": 3, "resets": "some", "states": True, "layout": "time"}
    fixed["reset_to"] = "zeros"
    assert at_random.wrong(1, **fixed)
