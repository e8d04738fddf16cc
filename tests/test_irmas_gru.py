"""The GRU on rendered instruments: made at first use; the same curve by scan and by PyTorch."""

import importlib
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

for package in ("pretty_midi", "midirenderer", "librosa", "jsonargparse"):
    pytest.importorskip(package, reason=f"needs {package}, of the extra audio")

from bppsa_lightning.datasets import IRMASDataModule, RenderedIRMASDataModule  # noqa: E402
from bppsa_lightning.datasets.rendering import corpus  # noqa: E402
from bppsa_lightning.datasets.rendering.instruments import INSTRUMENTS  # noqa: E402

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
THREE = {code: INSTRUMENTS[code] for code in ("cel", "flu", "pia")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """18 files of three instruments, made by the datamodule."""
    folder = tmp_path_factory.mktemp("data") / "rendered"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "INSTRUMENTS", THREE)
        data = RenderedIRMASDataModule(folder, per_class=6, val_split=0.5, test_split=0.0)
        data.prepare_data()
    return folder


@pytest.fixture
def fit(folder, monkeypatch, tmp_path):
    """Runs the experiment's `fit` in this process; returns its logged training losses."""
    compare = load(monkeypatch, "compare")

    def fit(name, *arguments):
        logger = "lightning.pytorch.loggers.CSVLogger"
        command = [
            "irmas_gru.py",
            "fit",
            "--trainer.accelerator",
            "cpu",
            "--trainer.logger",
            logger,
        ]
        command += ["--trainer.logger.save_dir", str(tmp_path), "--trainer.logger.name", name]
        command += ["--data.data_dir", str(folder), "--data.per_class", "6"]
        command += ["--data.val_split", "0.5", "--data.test_split", "0", "--data.batch_size", "3"]
        command += ["--trainer.log_every_n_steps", "1", "--trainer.enable_progress_bar", "false"]
        monkeypatch.setattr(sys, "argv", [*command, *arguments])
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(EXPERIMENTS / "irmas_gru.py"), run_name="__main__")
        return compare.read(tmp_path / name / "version_0" / "metrics.csv")

    return fit


def load(monkeypatch, name):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    return importlib.import_module(name)


def test_the_datamodule_renders_once_and_reads_as_irmas(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.wav")}
    assert len(before) == 18
    data = RenderedIRMASDataModule(folder, per_class=6, val_split=0.5, test_split=0, batch_size=9)
    data.prepare_data()
    data.setup("fit")
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*.wav")}
    (x, y), *others = data.train_dataloader()
    assert x.shape == (9, 259, 38) and x.dtype == torch.float32 and y.dtype == torch.int64
    assert not others and set(y.tolist()) == {0, 2, 6} and torch.isfinite(x).all()
    assert torch.allclose(x.mean(1), torch.zeros(9, 38), atol=1e-4)
    # By recording: no number is in both splits.
    numbers = [
        {excerpt.recording for excerpt in loader.dataset.excerpts}
        for loader in (data.train_dataloader(), data.val_dataloader())
    ]
    assert len(numbers[0]) == len(numbers[1]) == 3 and not numbers[0] & numbers[1]
    plain = IRMASDataModule(folder, val_split=0.5, test_split=0, batch_size=9)
    plain.setup("fit")
    assert len(plain.train_dataloader().dataset) == 9


def test_the_datamodule_checks_what_it_adds(tmp_path):
    with pytest.raises(ValueError, match="per_class is 0"):
        RenderedIRMASDataModule(tmp_path, per_class=0)
    with pytest.raises(ValueError, match="synthesiser is 'kazoo'"):
        RenderedIRMASDataModule(tmp_path, synthesiser="kazoo")
    with pytest.raises(ValueError, match="download is True.*IRMASDataModule downloads"):
        RenderedIRMASDataModule(tmp_path, download=True)
    with pytest.raises(ValueError, match="features is 'XL'"):
        RenderedIRMASDataModule(tmp_path, features="XL")


def test_curves_coincide_over_30_steps(fit, caplog):
    caplog.set_level("INFO")
    ours = fit("ours", "--trainer.max_epochs", "10")
    assert "bppsa: scanning gru (GRU)" in caplog.text
    caplog.clear()
    stock = fit("stock", "--trainer.max_epochs", "10", "--trainer.strategy", "auto")
    assert "scanning" not in caplog.text
    pairs = list(zip(ours["train/loss"], stock["train/loss"], strict=True))
    assert len(pairs) == 30
    for (step, loss), (same_step, wanted) in pairs:
        assert step == same_step and abs(loss - wanted) <= 1e-4 * wanted
    assert ours["train/loss"][0][1] != ours["train/loss"][-1][1]
    assert ours["val/accuracy"] == stock["val/accuracy"]


def test_the_models_input_is_the_datas(fit, tmp_path):
    fit("large", "--data.features", "L", "--trainer.max_steps", "2", "--data.prepare_workers", "1")
    (path,) = tmp_path.rglob("last.ckpt")
    weights = torch.load(path, weights_only=True)["state_dict"]
    assert weights["gru.weight_ih_l0"].shape == (60, 12)
    assert weights["classify.weight"].shape == (11, 20)


def test_breakdown_leaves_a_record_and_a_picture(monkeypatch, tmp_path, capsys):
    breakdown = load(monkeypatch, "gru_breakdown")
    monkeypatch.setattr(breakdown, "BATCHES", (1, 2))
    monkeypatch.setattr(breakdown.record, "RECORDS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["gru_breakdown", "--seconds", "0", "--features", "S"])
    breakdown.main()
    record = json.loads((tmp_path / "gru_breakdown_cpu.json").read_text())
    assert [(row["features"], row["B"], row["T"], row["F"]) for row in record["rows"]] == [
        ("S", 1, 259, 38),
        ("S", 2, 259, 38),
    ]
    for row in record["rows"]:
        for who in ("ours", "stock"):
            assert all(row[who][part] > 0 for part in breakdown.PARTS)
        assert row["algorithm"] == "linear" and row["ratio_stock"]["both"] > 0
    assert (tmp_path / "gru_breakdown_cpu.png").read_bytes().startswith(b"\x89PNG")
    assert "step x" in capsys.readouterr().out
