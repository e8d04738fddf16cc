"""The benchmark of layers in bfloat16: what it measures, what the docs quote of it."""

import json

import pytest
import torch

from bppsa_lightning.calibration import ratios
from bppsa_lightning.planner import hand_over
from experiments import recording
from experiments.benchmarks import layers_bfloat16
from experiments.paper.quotes import chosen as quotes


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setattr(layers_bfloat16, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(layers_bfloat16, "STEPS", (3,))
    monkeypatch.setattr(layers_bfloat16, "BATCHES", (2,))
    monkeypatch.setattr(layers_bfloat16, "SIZES", {"GRU": (4,), "RNN": (4,)})
    monkeypatch.setattr(ratios, "GRIDS", {"GRU": ratios.Grid((1, 5), (2,), (4, 6))})
    monkeypatch.setattr(recording, "folder", lambda asked: tmp_path)
    return tmp_path


def test_what_is_chosen(small, capsys):
    threads = torch.get_num_threads()
    layers_bfloat16.main(["--threads", "1", "--seconds", "0"])
    assert torch.get_num_threads() == threads
    rows = json.loads((small / "layers_bfloat16.json").read_text())["rows"]
    assert [(row["mode"], row["cell"]) for row in rows] == [
        (mode, cell) for mode in ("training", "inference") for cell in ("GRU", "RNN")
    ]
    for row in rows:
        assert (row["T"], row["B"], row["H"], row["threads"]) == (3, 2, 4, 1)
        assert isinstance(row["ours_in_float32"], bool)
        assert all(row[way]["step"] > 0 for way in ("stock", "linear", "auto"))
    said = capsys.readouterr().out
    assert said.count("| GRU | 3, 2, 4 | 1 |") == 2 and "inference" in said


def test_a_part_of_the_table(small):
    layers_bfloat16.main(["--table", "--threads", "1", "2", "--seconds", "0"])
    parts = json.loads((small / "layers_bfloat16_table.json").read_text())["table"]
    assert [part["threads"] for part in parts] == [1, 2]
    assert hand_over.nearest_threads(parts, 2)["T"] == [1, 5]
    assert [path.name for path in small.iterdir()] == ["layers_bfloat16_table.json"]


def test_without_instructions_for_it_there_is_nothing_to_measure(small, monkeypatch):
    monkeypatch.setattr(layers_bfloat16, "multiplies_bfloat16", lambda: False)
    with pytest.raises(SystemExit, match="no instructions for bfloat16"):
        layers_bfloat16.main([])


def test_the_quote_names_what_is_left_and_what_a_choice_costs(monkeypatch):
    def row(cell, stock, linear, ours, in_float32):
        ways = {"stock": {"step": stock}, "linear": {"step": linear}}
        return {"cell": cell, "ours": ours, "ours_in_float32": in_float32} | ways

    rows = [row("LSTM", 2.0, 1.0, True, True), row("LSTM", 1.0, 4.0, False, True)]
    rows += [row(cell, 6.0, 2.0, True, False) for cell in ("RNN", "GRU", "GRU")]
    rows += [row("RNN", 1.0, 1.25, True, False)]
    record = {"environment": recording.environment(), "rows": rows}
    monkeypatch.setattr(quotes, "read", lambda name: record)
    lstms, others = quotes.in_bfloat16("records").split(" Of 4 ")
    assert "Of 2 sizes of LSTMs" in lstms and "1 is left to PyTorch" in lstms
    assert "2.0x as fast as PyTorch in the median, 1.00x at worst" in lstms
    assert "takes 0.0% longer" in lstms
    assert "rule for float32 would take 150.0% longer, and be 0.25x as fast" in lstms
    assert others.startswith("sizes of RNNs and GRUs") and "0 are left to PyTorch" in others
    assert "3.0x as fast as PyTorch in the median, 0.80x at worst" in others
    assert "takes 6.2% longer" in others and "would take 150.0% longer, and be 1.00x" in others
    assert "records/layers_bfloat16.json" in others
