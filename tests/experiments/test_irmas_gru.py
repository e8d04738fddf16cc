"""The GRU on rendered instruments: made at first use; the same curve by scan and by PyTorch."""

import json
from collections import Counter
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

for package in ("pretty_midi", "midirenderer", "librosa", "jsonargparse"):
    pytest.importorskip(package, reason=f"needs {package}, of the extra audio")

from bppsa_lightning.datasets import IRMASDataModule, RenderedIRMASDataModule  # noqa: E402
from bppsa_lightning.datasets.irmas_layout import Excerpt  # noqa: E402
from bppsa_lightning.datasets.rendering import corpus, recording  # noqa: E402
from bppsa_lightning.datasets.rendering.instruments import INSTRUMENTS  # noqa: E402
from experiments import recording as records  # noqa: E402
from experiments.compare import runs  # noqa: E402
from experiments.paper import gru_breakdown, irmas_curves  # noqa: E402
from experiments.paper.sections.irmas_gru import table  # noqa: E402
from experiments.train import irmas_gru  # noqa: E402

pytestmark = pytest.mark.slow
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

    def fit(name, *arguments):
        logger = "lightning.pytorch.loggers.CSVLogger"
        command = ["fit", "--trainer.accelerator", "cpu", "--trainer.logger", logger]
        command += ["--trainer.logger.save_dir", str(tmp_path), "--trainer.logger.name", name]
        command += ["--data.data_dir", str(folder), "--data.per_class", "6"]
        command += ["--data.val_split", "0.5", "--data.test_split", "0", "--data.batch_size", "3"]
        command += ["--trainer.log_every_n_steps", "1", "--trainer.enable_progress_bar", "false"]
        monkeypatch.chdir(tmp_path)
        irmas_gru.main([*command, *arguments])
        return runs.read_csv(tmp_path / name / "version_0" / "metrics.csv")

    return fit


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


def test_each_split_has_every_program_of_every_instrument():
    """The default corpus, by the names of its files."""
    excerpts, programs = [], {}
    for code, number, count in corpus._recordings(300):
        drawn = recording.draw(0, code, number)
        programs[number] = (code, drawn.sound.program)
        for excerpt in range(1, count + 1):
            name = drawn.file_name(excerpt)
            label = list(INSTRUMENTS).index(code)
            excerpts.append(Excerpt(Path(code, name), f"{code}/{name}", label, 0, 0, 0))
    data = RenderedIRMASDataModule(per_class=300)
    splits = data._split(excerpts, list(range(len(excerpts))))
    recordings = {
        name: {int(excerpts[i].recording) for i in indices} for name, indices in splits.items()
    }
    assert sum(map(len, recordings.values())) == len(set.union(*recordings.values())) == 1100
    shares = {name: Counter(programs[number] for number in r) for name, r in recordings.items()}
    often = {program for program, count in Counter(programs.values()).items() if count >= 10}
    assert len(set(programs.values()) - often) == 3  # of 30
    for name, share in data._shares.items():
        assert set(shares[name]) >= (set(programs.values()) if name == "train" else often), name
        for instrument in INSTRUMENTS:
            found = sum(n for (code, _), n in shares[name].items() if code == instrument)
            assert abs(found / 100 - share) <= 0.03, (name, instrument)


def test_the_model_varies_what_it_trains_on_and_reads_out_what_it_is_told():
    model = irmas_gru.IRMASGRU
    x = torch.randn(64, 9, 6)
    torch.manual_seed(0)
    swapped = model(6, noise=0).vary(x)
    other = torch.cat([x[..., 3:], x[..., :3]], dim=-1)
    is_swapped = (swapped == other).all((1, 2))
    assert 16 < int(is_swapped.sum()) < 48
    assert torch.equal(swapped[~is_swapped], x[~is_swapped])
    assert torch.equal(model(6, noise=0, swap_channels=False).vary(x), x)
    noisy = model(6, noise=0.5, swap_channels=False).vary(x) - x
    assert abs(noisy.std() - 0.5) < 0.05 and abs(noisy.mean()) < 0.05

    last, mean = model(6, readout="last"), model(6)
    mean.load_state_dict(last.state_dict())
    states, _ = last.gru(x)
    assert torch.allclose(last(x), last.classify(states[:, -1]), atol=1e-6)
    assert torch.allclose(mean(x), mean.classify(states.mean(1)), atol=1e-6)
    with pytest.raises(ValueError, match="readout: found 'first', wanted 'mean' or 'last'"):
        model(6, readout="first")


def test_the_rate_rises_and_falls_and_a_shorter_run_takes_the_same_steps():
    model = irmas_gru.IRMASGRU

    class Rates(pl.Callback):
        def on_train_start(self, trainer, module):
            self.found = []

        def on_train_batch_start(self, trainer, *_):
            self.found.append(trainer.optimizers[0].param_groups[0]["lr"])

    def rates(**settings):
        callback = Rates()
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = pl.Trainer(
            **quiet, enable_model_summary=False, accelerator="cpu", callbacks=[callback], **settings
        )
        dataset = TensorDataset(torch.randn(8, 3, 6), torch.zeros(8, dtype=torch.int64))
        trainer.fit(model(6, lr=0.5, warm_up_steps=4), DataLoader(dataset, batch_size=2))
        return callback.found

    whole = rates(max_epochs=3)
    assert len(whole) == 12 and whole[:5] == sorted(whole[:4]) + [whole[4]]
    assert whole[0] == pytest.approx(0.125) and whole[3] == pytest.approx(0.5 * 0.8536, rel=1e-3)
    assert whole[3:] == sorted(whole[3:], reverse=True) and 0 < whole[-1] < 0.02
    assert rates(max_epochs=3, max_steps=5) == whole[:5]
    with pytest.raises(ValueError, match="max_epochs: found -1, wanted 1 or more"):
        rates(max_epochs=-1, max_steps=2)


def test_curves_leave_one_record_and_a_picture(folder, trained_here, monkeypatch, tmp_path, capsys):
    """Stock PyTorch stops early, at the same rates as ours."""
    monkeypatch.setattr(records, "RECORDS", tmp_path / "records")
    fit = ["--data.data_dir", str(folder), "--data.per_class", "6", "--data.val_split", "0.34"]
    fit += ["--data.test_split", "0.33", "--trainer.log_every_n_steps", "1"]
    fit += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
    fit += ["--trainer.max_epochs", "3"]
    for features, more in (("M", []), ("S", ["--add"])):
        sizes = ["--features", features, "--batches", "4", "--stock-steps", "4", *more]
        sizes += ["--name", "beginning"]
        irmas_curves.main(["--record", *sizes, *fit])
    assert [command[0] for command in trained_here] == ["fit", "fit", "test"] * 2

    record = json.loads((tmp_path / "records" / "beginning.json").read_text())
    assert [path.name for path in (tmp_path / "runs" / "irmas_curves").iterdir()] == ["beginning"]
    assert [(row["features"], row["T"], row["B"]) for row in record["rows"]] == [
        ("S", 259, 4),
        ("M", 517, 4),
    ]
    for row in record["rows"]:
        assert row["stock_steps"] == 4 < row["steps"]
        assert row["largest_relative_loss_difference"] < 1e-4 and row["steps_together"] == 4
        assert row["stock"]["val_accuracy"] is None
        assert 0 <= row["bppsa"]["val_accuracy"] <= 1 and 0 <= row["test_accuracy"] <= 1
    assert (tmp_path / "records" / "beginning.png").read_bytes().startswith(b"\x89PNG")
    apart = {"bppsa": {"train/loss": [(0, 1.0), (9, 1.0), (19, 1.0)]}}
    apart["stock"] = {"train/loss": [(0, 1.0), (9, 1.00009), (19, 1.001)]}
    assert irmas_curves.together(apart) == 10
    printed = capsys.readouterr().out
    assert table(record["rows"]) in printed and "over the 4 steps of stock" in printed


def test_curves_coincide_over_30_steps(fit, caplog):
    caplog.set_level("INFO")
    ours = fit("ours", "--trainer.max_epochs", "10")
    assert "BPPSA accelerates 1 of 1 recurrent layers: gru (GRU)" in caplog.text
    caplog.clear()
    stock = fit("stock", "--trainer.max_epochs", "10", "--trainer.strategy", "auto")
    assert "BPPSA" not in caplog.text
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
    monkeypatch.setattr(gru_breakdown, "BATCHES", (1, 2))
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    gru_breakdown.main(["--seconds", "0", "--features", "S", "--record"])
    record = json.loads((tmp_path / "gru_breakdown_cpu.json").read_text())
    assert [(row["features"], row["B"], row["T"], row["F"]) for row in record["rows"]] == [
        ("S", 1, 259, 38),
        ("S", 2, 259, 38),
    ]
    for row in record["rows"]:
        for who in ("ours", "stock"):
            assert all(row[who][part] > 0 for part in gru_breakdown.PARTS)
        assert row["algorithm"] == "linear" and row["ratio_stock"]["both"] > 0
    assert (tmp_path / "gru_breakdown_cpu.png").read_bytes().startswith(b"\x89PNG")
    assert "step x" in capsys.readouterr().out
