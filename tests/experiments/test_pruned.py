"""The experiments on sparse Jacobians run, small, and say what they should."""

import json

import pytest
import torch

from experiments.benchmarks import products
from experiments.compare import __main__ as compare
from experiments.paper import figure10, table1


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs a script's main; what it printed."""

    def run(script, *arguments):
        monkeypatch.chdir(tmp_path)
        script.main(list(arguments))
        return capsys.readouterr().out

    return run


def results(folder, name):
    return json.loads((folder / "runs" / "records" / f"{name}.json").read_text())


def test_table1(run, tmp_path):
    printed = run(table1, "--seconds", "0.05")
    assert all(f"{s} (paper {s})" in printed for s in (0.99157, 0.99998, 0.99994))
    assert [row["extrapolated"] for row in results(tmp_path, "table1")["rows"]] == [True] * 3
    picture = tmp_path / "runs" / "records" / "table1.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_products_of_jacobians(run, tmp_path):
    printed = run(products, "--rounds", "1", "--size", "4")
    assert "FLOPs" in printed and "torch" in printed and "x ours" in printed
    found = results(tmp_path, "benchmark_products")
    assert found["ratio"]["torch"] == found["seconds"]["torch"] / found["seconds"]["ours"]


def test_figure10(run, tmp_path):
    printed = run(figure10, "--kept", "0.002")
    assert printed.count("up-sweep 1") == 10 and printed.count("roots") == 6
    # Linear: no products, each layer once, all of them on the critical path.
    linear = run(figure10, "--kept", "0.002", "--levels", "0")
    assert linear.count("* roots") == 21 and "up-sweep" not in linear
    totals = dict(zip(*[iter(linear.split("\n")[-3].split(" "))] * 2))
    assert totals["scan"] == totals["critical_path"] == totals["bp_surviving"]
    found = results(tmp_path, "figure10")
    assert found["levels"] == 0 and f"{found['totals']['scan']:,}" == totals["scan"]


@pytest.mark.slow
def test_compare_prunes_and_trains_both_and_shows_that_the_curves_coincide(
    run, trained_here, monkeypatch, tmp_path
):
    small = ["--trainer.limit_train_batches", "6", "--trainer.limit_val_batches", "1"]
    small += ["--trainer.max_epochs", "2", "--data.init_args.batch_size", "4"]
    small += ["--trainer.enable_progress_bar", "false"]
    monkeypatch.setenv("WANDB_MODE", "disabled")
    printed = run(compare, "pruned_vgg11", *small)
    assert "speed-up" in printed and "sparsity 97.00%" in printed
    assert [command[0] for command in trained_here] == ["fit", "fit"]
    folder = tmp_path / "runs" / "pruned_vgg11"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["pruned_at_step"] == 6 and summary["sparsity"] == pytest.approx(0.97, abs=1e-4)
    assert summary["largest_loss_difference"] < 1e-3
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    for name in ("bppsa", "stock"):
        assert set(summary[name]["seconds"]) == {"dense", "pruned"}
        weights = torch.load(folder / name / "checkpoints" / "last.ckpt", weights_only=True)
        kept = weights["state_dict"]["layers.4.weight"]
        assert (kept != 0).float().mean() == pytest.approx(0.03, abs=1e-3)
