"""The benchmark of bl.ops.linear compares the same thing, of every size, with each number of
threads."""

import json

import torch

from experiments import recording
from experiments.benchmarks import linear


def test_a_record_has_all_sizes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(linear, "SIZES", ((30, 4, 100, 120), (2, 3, 4, 5)))
    monkeypatch.setattr(recording, "folder", lambda asked: tmp_path)
    before = torch.get_num_threads()
    linear.main(["--threads", "1", "2", "--seconds", "0"])
    assert torch.get_num_threads() == before
    rows = json.loads((tmp_path / "linear_cpu.json").read_text())["rows"]
    assert [(row["threads"], row["T"], row["O"]) for row in rows] == [
        (1, 30, 120), (1, 2, 5), (2, 30, 120), (2, 2, 5),
    ]  # fmt: skip
    for row in rows:
        assert row["apart"] < 1e-5
        assert row["ours"]["both"] > 0 and row["pytorch"]["both"] > 0
    assert "| 30, 4, 100, 120 | 1 |" in capsys.readouterr().out
