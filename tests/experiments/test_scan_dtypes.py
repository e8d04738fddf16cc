"""The benchmark of 16-bit scans compares one thing, and its record is what the docs quote."""

import json

import pytest

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import scan_dtypes
from experiments.paper.quotes import scan_dtypes as quotes

WAYS = ("bfloat16", "float16", "loop")


@pytest.mark.parametrize("scan", scan_dtypes.SIZES)
def test_the_loop_is_the_scan(scan):
    chain, terms = (t.double() for t in scan_dtypes.operands(scan, 30, 2, 5))
    found = getattr(bl.ops, scan)(chain, terms)
    assert (found - scan_dtypes.loop(scan, chain, terms)).abs().max() < 1e-12


def test_a_record_has_all_dtypes_of_all_scans(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scan_dtypes, "SIZES", {scan: ((9, 2, 4),) for scan in scan_dtypes.SIZES})
    monkeypatch.setattr(recording, "folder", lambda asked: tmp_path)
    scan_dtypes.main(["--threads", "1", "--seconds", "0"])
    rows = json.loads((tmp_path / "scan_dtypes_cpu.json").read_text())["rows"]
    assert [row["scan"] for row in rows] == list(scan_dtypes.SIZES)
    for row in rows:
        assert row["apart"] < 1e-2 and row["size"] == [9, 2, 4]
        for way in ("float32", "bfloat16", "float16", "loop"):
            assert row[way]["scan"] > 0
    assert "| reverse_scan | 9, 2, 4 | 1 |" in capsys.readouterr().out


def test_the_quote_names_the_extremes(monkeypatch):
    rows = [
        {f"ratio_{way}": {"scan": k * ratio} for k, way in enumerate(WAYS, 1)} for ratio in (1, 5)
    ]
    record = {"environment": recording.environment(), "rows": rows}
    monkeypatch.setattr(quotes, "read", lambda name: record)
    said = quotes.sixteen_bits("records")
    assert "bfloat16 takes 1.0 to 5.0 times" in said and "float16 2.0 to 10.0 times" in said
    assert "takes 3.0 to 15.0 times" in said and "records/scan_dtypes_cpu.json" in said
