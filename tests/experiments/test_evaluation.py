"""The benchmark of `Trainer.test` alone."""

import json

import pytest

from experiments import recording
from experiments.benchmarks import evaluation
from experiments.paper.quotes import evaluation as quotes


def test_a_record_has_both_of_each_network(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        evaluation, "CASES",
        {name: (make, (2, *shape[1:])) for name, (make, shape) in evaluation.CASES.items()},
    )  # fmt: skip
    monkeypatch.setattr(recording, "folder", lambda asked: tmp_path)
    names = ["GRU", "VGG-11, 3% left"]
    evaluation.main(["--only", *names, "--batches", "2", "--rounds", "1"])
    record = json.loads((tmp_path / "evaluation_cpu.json").read_text())
    assert [row["network"] for row in record["rows"]] == names
    for row in record["rows"]:
        assert row["stock"] > 0 < row["ours"] and row["apart"] < 1e-5
        assert row["ratio"] == pytest.approx(row["stock"] / row["ours"])
    assert "GRU: stock " in capsys.readouterr().out


def test_the_table_has_a_line_of_each(monkeypatch):
    row = {"network": "GRU", "stock": 0.02, "ours": 0.004, "ratio": 5.0}
    record = {"environment": recording.environment(), "rows": [row]}
    monkeypatch.setattr(quotes, "read", lambda name: record)
    said = quotes.table("records")
    assert "| GRU | 20.0 ms | 4.00 ms | 5.0x |" in said and "records/evaluation_cpu.json" in said
