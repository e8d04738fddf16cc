"""Whole trainings in windows and walked, from several seeds: how far their losses part."""

import json

import pytest

from experiments import recording
from experiments.benchmarks import curves_report, windows_curves


@pytest.mark.slow
def test_the_benchmark(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(windows_curves, "T", 600)
    windows_curves.main(["--seeds", "2", "--steps", "4"])
    record = json.loads((tmp_path / recording.UNRECORDED / "windows_curves.json").read_text())
    rows = record["rows"]
    cells = [*windows_curves.CELLS]
    assert [(row["seed"], row["cell"]) for row in rows] == [(s, c) for s in (0, 1) for c in cells]
    for row in rows:
        assert len(row["apart"]) == 3
        assert all(0 <= apart < 1e-4 for apart in row["apart"].values())
        assert len(row["loss"]) == 3 and max(row["loss"].values()) < 6
    losses = [row["loss"]["windows"] for row in rows]
    assert len({*losses}) == 6  # each seed is another network
    assert [row["steps_in_windows"] for row in rows if row["cell"] == "RNN"] == [4, 4]
    assert "| RNN | 2 | 4 of 4 |" in capsys.readouterr().out


def test_what_is_told_of_seeds():
    names = [f"{a} / {b}" for a, b in (("1", "2"), ("1", "windows"), ("2", "windows"))]
    rows = [
        {
            "cell": "RNN",
            "steps": 9,
            "steps_in_windows": n,
            "apart": dict(zip(names, apart, strict=True)),
        }
        for n, apart in ((9, (1e-3, 2e-3, 3e-3)), (7, (3e-3, 3e-3, 4e-3)), (8, (2e-3, 1e-3, 5e-3)))
    ]
    assert curves_report.table(rows).splitlines()[-1] == (
        "| RNN | 3 | 8 of 9 | 2.0e-03 | 3.0e-03 | 3.0e-03 | 5.0e-03 | 2 of 3 |"
    )
