"""The benchmark of windows, and what docs/windows.md says of its record."""

import json
import re
from pathlib import Path

import pytest
import torch

import bppsa_lightning as bl
from bppsa_lightning.planner.tables import shipped
from experiments import recording
from experiments.benchmarks import windows, windows_auto, windows_jax
from experiments.benchmarks.recurrent_cases import Case, pair

ROOT = Path(__file__).parent.parent.parent
NAMES = ("LayerNormLSTM", "GRUD", "RITS", "AUGRU", "SRU", "Pendulum")


@pytest.mark.slow
def test_the_benchmark(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(windows, "LOOPS", ((600, 1, 16),))
    monkeypatch.setattr(windows, "LAYERS", (("GRU", 4, 900, 1),))
    monkeypatch.setattr(windows, "PYTORCH", (("LSTM", 4, 900, 1),))
    windows.main(["--seconds", "0"])
    record = json.loads((tmp_path / recording.UNRECORDED / "windows_cpu.json").read_text())
    assert [case["recurrence"] for case in record["by_hand"]] == list(NAMES)
    for cases in (record["by_hand"], record["layers"], record["pytorch"]):
        for case in cases:
            assert case["gain"] > 0
            assert case["error"]["windows"] < 1e-4
    assert " windows of " in record["by_hand"][0]["explain"]
    assert "GRU, layers" in capsys.readouterr().out


def test_the_benchmark_of_what_is_chosen(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(windows_auto, "GRID", (("GRU", 4, 4, 300),))
    monkeypatch.setattr(windows_auto, "NEVER", (("RNN", 4, 3000, 9), ("LSTM", 4, 3000, 9)))
    windows_auto.main(["--seconds", "0", "--calls", "2"])
    record = json.loads((tmp_path / recording.UNRECORDED / "windows_auto_cpu.json").read_text())
    [row] = record["grid"]
    assert row["best"] in windows_auto.FIXED and row["auto_over_best"] > 0
    assert all(row["over_walk"]["auto"]["all"] > 0 for row in record["never"])
    assert "LSTM 4, 3000 steps, never meets" in capsys.readouterr().out


def test_sizes_between_those_of_the_tables_have_a_record_of_their_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(windows_auto, "BETWEEN", (("GRU", 4, 4, 300),))
    windows_auto.main(["--between", "--seconds", "0"])
    [path] = (tmp_path / recording.UNRECORDED).iterdir()
    assert path.name == "windows_auto_between_cpu.json"
    [row] = json.loads(path.read_text())["grid"]
    assert (row["H"], row["T"]) == (4, 300)


def test_those_sizes_are_in_no_table():
    tables = [table for table in shipped().values() if "steps" in table]
    measured = {H for table in tables for part in table["steps"] for H in part["H"]}
    assert tables and not measured & {H for _, H, _, _ in windows_auto.BETWEEN}


@pytest.mark.slow
def test_the_benchmark_beside_jax(monkeypatch, tmp_path, capsys):
    """JAX is not installed here: a step of PyTorch's takes its place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(windows_jax, "CASES", (Case("GRU", 1, 2000, 4),))
    monkeypatch.setattr(windows_jax.recurrent_jax, "step_of", lambda *_: {})
    with pytest.raises(SystemExit, match="pip install jax"):
        windows_jax.main([])

    def stock(case, unroll=1):
        step = pair(case, torch.device("cpu"))[1]
        return {"jax": lambda: {"both": step()["both"]}}

    monkeypatch.setattr(windows_jax.recurrent_jax, "step_of", stock)
    windows_jax.main(["--seconds", "0"])
    [row] = json.loads((tmp_path / "runs/records/windows_jax_cpu.json").read_text())["cases"]
    assert row["gain"] > 0 and row["T"] == 2000 and row["fastest"] in row["seconds"]
    assert "GRU (2,000, 1, 4)" in capsys.readouterr().out


def test_beside_jax_ours_is_counted_once(monkeypatch):
    """A step of ours says what it took both in parts and as a whole."""
    case = Case("GRU", 1, 20, 4)
    real, _ = pair(case, torch.device("cpu"))

    class Step:
        layer = real.layer

        def __call__(self):
            return dict.fromkeys(real(), 1.0) | {"both": 2.0}

    def jax(case, unroll=1):
        return {"jax": lambda: {"both": 6.0 if unroll == 1 else 8.0 - unroll / 4}}

    monkeypatch.setattr(windows_jax, "pair", lambda *_: (Step(), None))
    monkeypatch.setattr(windows_jax.recurrent_jax, "step_of", jax)
    found = windows_jax.measure(case, 0)
    assert found["seconds"]["ours"] == 2 and found["gain"] == 3
    assert found["fastest"] == "jax, unroll=16" and found["gain_of_fastest"] == 2


@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_what_never_meets_does_not(cell):
    torch.manual_seed(0)
    module = windows_auto.attached(windows_auto.remembers(cell, 8), "speculative")
    for _ in range(2):
        module(torch.randn(4000, 1, 1) / 4000)[0].sum().backward()
    assert "remembers more than" in bl.explain(module) or "did not meet" in bl.explain(module)


@pytest.fixture(scope="module")
def record():
    return json.loads((ROOT / "experiments" / "records" / "windows_cpu.json").read_text())


def shown(gain):
    return f"{gain:.0f}x" if gain >= 10 else f"{gain:.1f}x"


def test_the_page_shows_the_record(record):
    page = (ROOT / "docs" / "windows.md").read_text()
    for T, B, H in windows.LOOPS:
        cases = [c for c in record["by_hand"] if (c["T"], c["B"], c["H"]) == (T, B, H)]
        gains = {case["recurrence"]: shown(case["gain"]) for case in cases}
        row = re.search(rf"\| \({T}, {B}, {H}\) \| (.*) \|", page).group(1)
        assert row.split(" | ") == [gains[name] for name in NAMES]
    for case in record["layers"]:
        size = rf"\({case['T']}, {case['B']}, {case['H']}\)"
        row = re.search(rf"\| [^|]*{case['layer']}[^|]*{size}[^|]* \| (.*) \|", page).group(1)
        assert shown(case["gain"]) in row.split(", ")


def test_the_record_is_as_exact_as_the_walk(record):
    for case in record["by_hand"]:
        assert case["error"]["windows"] <= 2 * case["error"]["walk"]
