"""The experiments on sparse Jacobians run, small, and say what they should."""

import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "experiments"))

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--no-record"])
        importlib.import_module(name).main()
        return capsys.readouterr().out

    return run


def test_table1(run):
    printed = run("table1", "--seconds", "0.05")
    assert all(f"{s} (paper {s})" in printed for s in (0.99157, 0.99998, 0.99994))


def test_benchmark_products(run):
    printed = run("benchmark_products", "--rounds", "1", "--size", "4")
    assert "FLOPs" in printed and "torch" in printed and "x ours" in printed


def test_figure10(run):
    printed = run("figure10", "--kept", "0.002")
    assert printed.count("up-sweep 1") == 10 and printed.count("roots") == 6
    # Linear: no products, each layer once, all of them on the critical path.
    linear = run("figure10", "--kept", "0.002", "--levels", "0")
    assert linear.count("* roots") == 21 and "up-sweep" not in linear
    totals = dict(zip(*[iter(linear.split("\n")[-2].split(" "))] * 2))
    assert totals["scan"] == totals["critical_path"] == totals["bp_surviving"]
