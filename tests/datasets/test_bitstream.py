"""The bitstream datamodule: its batches, its arguments and errors."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from support.bitstream import SMALL, SPLITS, files, loader, make, whole
from torch.utils.data import DistributedSampler

from bppsa_lightning.datasets import BitstreamDataModule

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


# The batches
@pytest.mark.parametrize("split", [*SPLITS, "predict"])
def test_batches_have_the_promised_form(tmp_path, split):
    batches = list(loader(make(tmp_path, steps=50, batch_size=16), split))
    total = {"train": 60, "val": 40}.get(split, 20)
    assert [len(y) for _, y in batches] == [16] * (total // 16) + [total % 16]
    for x, y in batches:
        assert x.shape == (len(y), 50, 1) and x.dtype == torch.float32 and x.is_contiguous()
        assert y.shape == (len(y),) and y.dtype == torch.int64
        assert set(x.unique().tolist()) == {0.0, 1.0}
        assert all(0 <= label <= 9 for label in y.tolist())


@pytest.mark.parametrize("split", ["val", "test", "predict"])
def test_evaluation_keeps_the_order(tmp_path, split):
    data = make(tmp_path)
    x, y = (torch.cat(parts) for parts in zip(*loader(data, split), strict=True))
    bits, labels = whole(data, "test" if split == "predict" else split)
    assert np.array_equal(x.squeeze(-1), bits)
    assert np.array_equal(y, labels)


def test_training_order_follows_torchs_seed(tmp_path):
    data = make(tmp_path, steps=200)
    rows = {row.tobytes(): index for index, row in enumerate(whole(data, "train")[0])}

    def epoch(batches):
        return [rows[row.tobytes()] for x, _ in batches for row in x.squeeze(-1).bool().numpy()]

    seed_everything(3)
    batches = data.train_dataloader()
    first, second = epoch(batches), epoch(batches)
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second and first != sorted(first)
    seed_everything(3)
    assert epoch(data.train_dataloader()) == first
    seed_everything(4)
    assert epoch(data.train_dataloader()) != first


def test_distributed_samplers_share_the_samples(tmp_path):
    data = make(tmp_path, steps=200)
    batches = data.train_dataloader()
    seen = [
        x.squeeze(-1)
        for rank in range(2)
        for x, _ in torch.utils.data.DataLoader(
            batches.dataset,
            batch_size=batches.batch_size,
            sampler=DistributedSampler(batches.dataset, num_replicas=2, rank=rank),
            collate_fn=batches.collate_fn,
        )
    ]
    bits, _ = whole(data, "train")
    assert np.array_equal(np.unique(torch.cat(seen).numpy(), axis=0), np.unique(bits, axis=0))


@pytest.mark.parametrize(
    "settings, lengths",
    [
        ({"batch_size": 16}, [16, 16, 16, 12]),
        ({"batch_size": 16, "drop_last": True}, [16, 16, 16]),
        ({"batch_size": 20}, [20, 20, 20]),
        ({"batch_size": 1000}, [60]),
        ({"num_samples": 1, "batch_size": 1}, [1]),
        ({"num_samples": 1, "steps": 1}, [1]),
        ({"steps": 1}, [16, 16, 16, 12]),
        ({"steps": 7}, [16, 16, 16, 12]),
        ({"steps": 8}, [16, 16, 16, 12]),
        ({"steps": 9}, [16, 16, 16, 12]),
        ({"steps": 70_001, "num_samples": 3}, [3]),
    ],
)
def test_odd_sizes(tmp_path, settings, lengths):
    data = make(tmp_path, **settings)
    steps = settings.get("steps", 50)
    assert len(data.train_dataloader()) == len(lengths)
    assert [tuple(x.shape) for x, _ in data.train_dataloader()] == [(n, steps, 1) for n in lengths]
    if steps > 1:
        bits, _ = whole(data, "val")
        assert bits[:, -1].any() and not bits[:, -1].all()


def test_workers_give_the_same_batches(tmp_path):
    here = list(make(tmp_path).val_dataloader())
    there = list(make(tmp_path, num_workers=1).val_dataloader())
    assert len(here) == len(there) == 3
    for (x, y), (x_there, y_there) in zip(here, there, strict=True):
        assert torch.equal(x, x_there) and torch.equal(y, y_there)


class Recorder(LightningModule):
    """Guesses the class from the share of ones, and keeps the shapes of its batches by stage."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 10)
        self.shapes = {}

    def training_step(self, batch, _):
        x, y = batch
        self.shapes.setdefault(self.trainer.state.stage.value, []).append(tuple(x.shape))
        return torch.nn.functional.cross_entropy(self.layer(x.mean(dim=1)), y)

    def validation_step(self, batch, batch_index):
        self.training_step(batch, batch_index)

    def test_step(self, batch, batch_index):
        self.training_step(batch, batch_index)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_trainer_runs_every_stage(tmp_path):
    data = BitstreamDataModule(tmp_path / "data", **SMALL)
    silent = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        default_root_dir=tmp_path,
        num_sanity_val_steps=0,
        **silent,
    )
    model = Recorder()
    trainer.fit(model, datamodule=data)
    trainer.validate(model, datamodule=data, verbose=False)
    trainer.test(model, datamodule=data, verbose=False)
    assert model.shapes == {
        "train": ([(16, 50, 1)] * 3 + [(12, 50, 1)]) * 2,
        "validate": ([(16, 50, 1)] * 2 + [(8, 50, 1)]) * 3,
        "test": [(16, 50, 1), (4, 50, 1)],
    }
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    restored = BitstreamDataModule.load_from_checkpoint(checkpoint, weights_only=True)
    assert restored.hparams == data.hparams


# Arguments
@pytest.mark.parametrize(
    "name, value, error, wanted",
    [
        *[
            (name, value, error, "integer of at least 1")
            for name in (
                "steps",
                "batch_size",
                "num_samples",
                "num_val_samples",
                "num_test_samples",
            )
            for value, error in [
                (0, ValueError),
                (-3, ValueError),
                (2.0, TypeError),
                ("8", TypeError),
                (True, TypeError),
                (None, TypeError),
            ]
        ],
        ("num_classes", 1, ValueError, "integer of at least 2"),
        ("num_classes", 2.5, TypeError, "integer of at least 2"),
        ("num_workers", -1, ValueError, "integer of at least 0"),
        ("num_workers", "2", TypeError, "integer of at least 0"),
        ("seed", -1, ValueError, "integer from 0 to 18446744073709551615"),
        ("seed", 2**64, ValueError, "integer from 0 to 18446744073709551615"),
        ("seed", None, TypeError, "integer from 0 to"),
        ("first_probability", -0.1, ValueError, "from 0 to 1 for every class"),
        ("first_probability", 0.2, ValueError, "from 0 to 1 for every class"),
        ("first_probability", float("nan"), ValueError, "from 0 to 1 for every class"),
        ("first_probability", "half", TypeError, "a number"),
        ("first_probability", True, TypeError, "a number"),
        ("probability_step", 0.2, ValueError, "from 0 to 1 for every class"),
        ("probability_step", -0.1, ValueError, "from 0 to 1 for every class"),
        ("probability_step", float("inf"), ValueError, "from 0 to 1 for every class"),
        ("probability_step", [0.1], TypeError, "a number"),
        ("drop_last", 1, TypeError, "True or False"),
        ("drop_last", "yes", TypeError, "True or False"),
        ("data_dir", None, TypeError, "a str or a Path"),
        ("data_dir", 3, TypeError, "a str or a Path"),
    ],
)
def test_bad_arguments(name, value, error, wanted):
    with pytest.raises(error) as raised:
        BitstreamDataModule(**{name: value})
    message = str(raised.value)
    assert name in message and str(value) in message and wanted in message


def test_dropping_the_only_batch_is_refused():
    with pytest.raises(ValueError, match="batch_size is 17 with num_samples=16.*no training batch"):
        BitstreamDataModule(num_samples=16, batch_size=17, drop_last=True)
    BitstreamDataModule(num_samples=16, batch_size=16, drop_last=True)


def test_numpy_numbers_and_paths_become_plain_values(tmp_path):
    data = BitstreamDataModule(
        Path(tmp_path), steps=np.int64(5), seed=np.uint8(3), first_probability=np.float32(0)
    )
    plain = {name: type(value) for name, value in data.hparams.items()}
    assert plain["steps"] is plain["seed"] is int
    assert plain["first_probability"] is float and plain["data_dir"] is str


def test_home_folder_is_found(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.setenv("USERPROFILE", "/somewhere")
    assert BitstreamDataModule("~/data").data_dir == "/somewhere/data"


def test_signature_and_hyperparameters():
    data = BitstreamDataModule("here", 5, 6, 7, 8)
    assert data.hparams == {
        "data_dir": "here", "steps": 5, "batch_size": 6, "num_samples": 7, "seed": 8,
        "num_val_samples": 1600, "num_test_samples": 1600, "num_classes": 10,
        "first_probability": 0.05, "probability_step": 0.1, "num_workers": 0, "drop_last": False,
    }  # fmt: skip
    defaults = BitstreamDataModule().hparams
    assert [defaults[name] for name in ("data_dir", "steps", "batch_size")] == ["data", 1000, 16]
    assert [defaults[name] for name in ("num_samples", "seed")] == [32000, 0]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_folder_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file").write_text("no folder")
    data = BitstreamDataModule(tmp_path / place, **SMALL)
    with pytest.raises(OSError) as raised:
        data.prepare_data()
    message = str(raised.value)
    assert f"data_dir is {str(tmp_path / place)!r}" in message
    assert "pass the data_dir of a folder that can be written" in message


def test_disk_that_is_full(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match="cannot be written there.*No space left.*make room"
    ) as raised:
        BitstreamDataModule(tmp_path, **SMALL).prepare_data()
    assert raised.value.errno == 28
    assert files(tmp_path) == {}


def test_command_line(tmp_path):
    jsonargparse = pytest.importorskip("jsonargparse")
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(BitstreamDataModule, "data")
    config = parser.parse_args([f"--data.data_dir={tmp_path}", "--data.steps=5", "--data.seed=7"])
    data = BitstreamDataModule(**config.data.as_dict())
    assert data.hparams.steps == 5 and data.hparams.data_dir == str(tmp_path)
    with pytest.raises(jsonargparse.ArgumentError, match="steps"):
        parser.parse_args(["--data.steps=many"])
    text = " ".join(parser.format_help().split())
    for name in data.hparams:
        _, _, description = text.partition(f"--data.{name} ")
        assert description.partition("(")[0].split()[1:], f"{name} has no description"
