"""IRMASDataModule: its stages in a Trainer, arguments and errors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from support.irmas_corpus import INSTRUMENTS, write_corpus
from support.irmas_data import make, whole, write_fake

from bppsa_lightning.datasets import IRMASDataModule, RenderedIRMASDataModule

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


# Stages, Trainer, checkpoints
def test_stages_load_and_tell(corpus):
    data = IRMASDataModule(corpus, batch_size=8)
    with pytest.raises(RuntimeError, match="train split is not loaded; call setup"):
        data.train_dataloader()
    data.setup("test")  # computes what prepare_data did not
    x, y = next(iter(data.test_dataloader()))
    assert x.shape == (8, 259, 38) and x.dtype == torch.float32 and y.dtype == torch.int64
    assert torch.equal(next(iter(data.predict_dataloader()))[0], x)
    data.setup("fit")
    assert len(list(data.train_dataloader())) == -(-len(data._datasets["train"]) // 8)
    with pytest.raises(ValueError, match="stage is 'trian'; wanted one of .*'fit'"):
        data.setup("trian")
    sample = data._datasets["train"][0]
    assert sample[0].shape == (259, 38) and sample[1].shape == ()


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.gru = torch.nn.GRU(38, 8, batch_first=True)
        self.head = torch.nn.Linear(8, len(INSTRUMENTS))

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.head(self.gru(x)[0][:, -1]), y)

    def validation_step(self, batch, index):
        self.log("loss", self.training_step(batch, index))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


@pytest.mark.parametrize("strategy", ["bppsa", "auto"])
def test_trainer_runs_and_the_checkpoint_brings_the_settings_back(corpus, tmp_path, strategy):
    data = IRMASDataModule(corpus, cache_dir=corpus / "cache", seed=3)
    silent = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(
        strategy=strategy,
        max_steps=2,
        accelerator="cpu",
        default_root_dir=tmp_path,
        num_sanity_val_steps=1,
        **silent,
    )
    model = Classifier()
    trainer.fit(model, datamodule=data)
    assert trainer.global_step == 2
    trainer.test(model, datamodule=data, verbose=False)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    restored = IRMASDataModule.load_from_checkpoint(checkpoint, weights_only=True)
    assert restored.hparams == data.hparams


# Arguments and errors
@pytest.mark.parametrize(
    "name, value, error, wanted",
    [
        ("data_dir", 3, TypeError, "a str or a Path"),
        ("cache_dir", 3, TypeError, "a str or a Path"),
        ("features", "XL", ValueError, "one of 'S', 'M', 'L'"),
        ("features", ["S"], ValueError, "one of 'S', 'M', 'L'"),
        ("on_error", "ignore", ValueError, "one of 'skip', 'raise'"),
        ("backend", "scipy", ValueError, "one of 'librosa', 'torchaudio'"),
        ("device", "gpu", ValueError, "a torch device such as 'cuda'"),
        ("batch_size", 0, ValueError, "integer of at least 1"),
        ("seed", -1, ValueError, "integer from 0 to 18446744073709551615"),
        ("val_split", 1, ValueError, "at least 0 and below 1"),
        ("test_split", -0.1, ValueError, "at least 0 and below 1"),
        ("val_split", float("nan"), ValueError, "at least 0 and below 1"),
        ("val_split", 0.9, ValueError, "a sum below 1"),
        ("val_split", "0.1", TypeError, "a number"),
        ("download", 1, TypeError, "True or False"),
        ("drop_last", 1, TypeError, "True or False"),
        ("num_workers", -1, ValueError, "integer of at least 0"),
        ("prepare_workers", 0, ValueError, "integer of at least 1"),
    ],
)
def test_bad_arguments(name, value, error, wanted):
    with pytest.raises(error) as raised:
        IRMASDataModule(**{name: value})
    message = str(raised.value)
    assert name in message and str(value) in message and wanted in message


def test_signature():
    data = IRMASDataModule("here", "M", 3, 4)
    assert [data.hparams[n] for n in ("data_dir", "features", "batch_size", "seed")] == [
        "here", "M", 3, 4,
    ]  # fmt: skip
    defaults = IRMASDataModule().hparams
    assert [defaults[n] for n in ("data_dir", "features", "batch_size", "seed", "download")] == [
        "data/irmas", "S", 16, 0, False,
    ]  # fmt: skip
    assert data.num_classes == 11 and data.instruments == INSTRUMENTS
    plain = IRMASDataModule(Path("a"), seed=np.int64(3), cache_dir=Path("b")).hparams
    assert [type(plain[n]) for n in ("data_dir", "seed", "cache_dir")] == [str, int, str]


def test_settings_of_a_rendered_corpus_are_plain_values():
    """A checkpoint that holds a Path does not load with weights_only."""
    settings = RenderedIRMASDataModule(Path("a"), cache_dir=Path("b")).hparams
    assert [type(settings[name]) for name in ("data_dir", "cache_dir")] == [str, str]


def test_the_archives_folder_is_found(tmp_path, fake):
    write_corpus(tmp_path / "IRMAS-TrainingData", ("cel",), recordings=9, write=write_fake)
    assert len(whole(make(tmp_path))[1]) == 9


def test_an_empty_folder_does_not_hide_the_archives(tmp_path, fake):
    (tmp_path / "cel").mkdir()
    write_corpus(tmp_path / "IRMAS-TrainingData", ("cel",), recordings=9, write=write_fake)
    assert len(whole(make(tmp_path))[1]) == 9


def test_no_data_and_too_few(tmp_path, fake):
    with pytest.raises(FileNotFoundError, match="where no WAV file.*download=True"):
        IRMASDataModule(tmp_path).prepare_data()
    with pytest.raises(FileNotFoundError, match="where no WAV file.*call prepare_data to download"):
        IRMASDataModule(tmp_path, download=True).setup()
    (tmp_path / "cel").mkdir()
    (tmp_path / "cel" / "._a.wav").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="where no WAV file"):
        IRMASDataModule(tmp_path).prepare_data()
    for excerpt in range(3):
        write_fake(tmp_path / "cel" / f"[cel][cla]0001__{excerpt}.wav", 0)
    with pytest.raises(ValueError, match="3 usable files of 1 recordings are too few: the val"):
        IRMASDataModule(tmp_path).prepare_data()
    assert len(make(tmp_path, val_split=0, test_split=0)._datasets["train"]) == 3
    for path in (tmp_path / "cel").glob("[[]*"):
        path.write_bytes(b"bad")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="the train split is empty"):
        make(tmp_path, val_split=0, test_split=0)


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_folder_that_cannot_be_written(corpus, place):
    (corpus / "file").write_text("no folder")
    with pytest.raises(
        OSError, match="cache_dir is .* cannot be written there.*pass the cache_dir"
    ):
        IRMASDataModule(corpus, cache_dir=corpus / place).prepare_data()


def test_command_line(tmp_path):
    jsonargparse = pytest.importorskip("jsonargparse")
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(IRMASDataModule, "data")
    config = parser.parse_args([f"--data.data_dir={tmp_path}", "--data.features=L"])
    data = IRMASDataModule(**config.data.as_dict())
    assert data.hparams.features == "L" and data.hparams.data_dir == str(tmp_path)
    with pytest.raises(jsonargparse.ArgumentError, match="features"):
        parser.parse_args(["--data.features=XL"])
    text = " ".join(parser.format_help().split())
    for name in data.hparams:
        _, _, description = text.partition(f"--data.{name} ")
        assert description.partition("(")[0].split()[1:], f"{name} has no description"
