"""The benchmark of what is handed over to PyTorch: what it measures, what the docs quote of it."""

import json

import pytest
import torch

from bppsa_lightning.calibration import least, ratios
from experiments import recording
from experiments.benchmarks import hand_over
from experiments.paper.quotes import chosen


@pytest.fixture
def small(tmp_path, monkeypatch):
    for name in ("STEPS", "BATCHES", "SIZES"):
        monkeypatch.setattr(hand_over, name, (3,))
    monkeypatch.setattr(least, "SIZES", (4,))
    monkeypatch.setattr(least, "BATCHES", (2,))
    monkeypatch.setattr(ratios, "GRIDS", {"GRU": ratios.Grid((1, 5), (2,), (4, 6))})
    monkeypatch.setattr(recording, "folder", lambda asked: tmp_path)
    return tmp_path


def test_what_is_chosen(small, capsys):
    threads = torch.get_num_threads()
    hand_over.main(["--threads", "1", "--seconds", "0"])
    assert torch.get_num_threads() == threads
    rows = json.loads((small / "inference_cpu.json").read_text())["rows"]
    assert [row["cell"] for row in rows] == ["RNN", "GRU", "LSTM"]
    for row in rows:
        assert (row["T"], row["B"], row["H"], row["threads"]) == (3, 3, 3, 1)
        assert isinstance(row["ours"], bool) and isinstance(row["ours_in_training"], bool)
        assert all(row[way]["step"] > 0 for way in ("stock", "linear", "auto"))
    assert "| GRU | 3, 3, 3 | 1 |" in capsys.readouterr().out


def test_parts_of_the_table(small):
    hand_over.main(["--table", "--threads", "1", "2", "--seconds", "0"])
    record = json.loads((small / "hand_over_table_cpu.json").read_text())
    for part, threads in zip(record["hand_over"], (1, 2), strict=True):
        assert (part["threads"], part["H"], part["B"]) == (threads, [4], [2])
        assert set(part["least_T"]) == set(least.CELLS)
    for part, threads in zip(record["inference"], (1, 2), strict=True):
        assert (part["threads"], part["cell"], part["T"]) == (threads, "GRU", [1, 5])


def test_the_quote(monkeypatch):
    def row(cell, stock, linear, ours, in_training):
        ways = {"stock": {"step": stock}, "linear": {"step": linear}}
        return {"cell": cell, "ours": ours, "ours_in_training": in_training} | ways

    rows = [row("LSTM", 1.0, 4.0, False, True), row("LSTM", 3.0, 1.0, True, True)]
    rows += [row("GRU", 2.0, 1.0, True, True)]
    monkeypatch.setattr(
        chosen, "read", lambda name: {"environment": recording.environment(), "rows": rows}
    )
    text = chosen.in_inference("records")
    assert text.startswith("Of 2 sizes of LSTMs, on one thread and on two, 1 is left to PyTorch.")
    assert "The rule for training would take 150.0% longer, and be 0.25x as fast" in text
    assert "Of 1 sizes of RNNs and GRUs" in text and "records/inference_cpu.json" in text
