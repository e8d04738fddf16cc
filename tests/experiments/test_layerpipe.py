"""LayerPipe's experiments: the scripts, with little to do."""

import json

import pytest

from experiments import recording
from experiments.benchmarks import out_of_order
from experiments.paper import layerpipe, layerpipe_convergence


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path / recording.UNRECORDED


@pytest.mark.slow
def test_convergence(here, capsys):
    pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra experiments")
    layerpipe_convergence.main(["--only", "bitstreams", "--seeds", "2", "--epochs", "1"])
    found = json.loads((here / "layerpipe_convergence.json").read_text())["results"]["bitstreams"]
    assert set(found) == set(layerpipe_convergence.METHODS)
    losses = {method: found[method]["runs"][0]["loss"] for method in found}
    assert losses["synchronous"][0] < losses["pipedream"][0]  # old gradients learn later
    assert losses["layerpipe"] != losses["layerpipe, average"]
    assert (here / "layerpipe_convergence.png").stat().st_size > 10_000
    assert "bitstreams, layerpipe, average: accuracy" in capsys.readouterr().out


@pytest.mark.slow
def test_the_model_over_networks_and_processors(here, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra experiments")
    few = {name: layerpipe.NETWORKS[name] for name in ("AlexNet", "MLP")}
    monkeypatch.setattr(layerpipe, "NETWORKS", few)
    monkeypatch.setattr(layerpipe, "MODELS", dict(layerpipe.MODELS))
    layerpipe.main(["--models", "multiply-and-adds"])
    found = json.loads((here / "layerpipe_model.json").read_text())
    [(model, networks)] = found["rows"].items()
    assert model == "multiply-and-adds" and set(networks) == set(few)
    for rows in networks.values():
        for row in rows:
            assert row["bound"] >= max(row["intra"], row["inter"]) - 1e-6
            assert min(row["intra"], row["inter"]) >= 1 - 1e-6
            if row["processors"] in layerpipe.PAPER:
                assert row["bound"] * 1.05 >= row["simulated"] >= row["executor"] * 0.5
    for name in ("layerpipe_model.png", "layerpipe_schedules.png"):
        assert (here / name).stat().st_size > 10_000


def test_out_of_order(here, monkeypatch, capsys):
    small = {"mlp": (lambda: out_of_order.mlp(2, 8), (4, 8))}
    monkeypatch.setattr(out_of_order, "CASES", small)
    out_of_order.main(["--seconds", "0"])
    case = json.loads((here / "out_of_order_cpu.json").read_text())["cases"]["mlp"]
    assert case["waiting_bytes"] == 4 * (4 * 8 * 2 + 4 * 10)
    assert set(case["ratio"]) == {"falling", "rising", "second thread"}
    assert "| mlp | second thread |" in capsys.readouterr().out
