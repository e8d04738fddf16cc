"""The bitstream datamodule: its bits, its batches, its cache file, its errors."""

import hashlib
import multiprocessing
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from support.cache_damage import flip
from torch.utils.data import DistributedSampler

from bppsa_lightning.datasets import BitstreamDataModule, bitstream_cache

SPLITS = ("train", "val", "test")
SMALL = {"steps": 50, "num_samples": 60, "num_val_samples": 40, "num_test_samples": 20}
# SHA-256 of the bits and labels of SMALL, split after split. Another value means that cached data
# and published results no longer belong to the code: raise the format version if it is on purpose.
SMALL_SHA256 = "d12be63878f6ba977f93678bd37d7c02adac063c6dc44d7a5e2aee5f34e70d23"

fork = multiprocessing.get_context("fork") if hasattr(os, "fork") else None
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
needs_fork = pytest.mark.skipif(fork is None, reason="needs fork")


def make(data_dir, **settings):
    """A datamodule with every split loaded."""
    data = BitstreamDataModule(data_dir, **{**SMALL, **settings})
    data.prepare_data()
    data.setup()
    return data


def loader(data, split):
    return getattr(data, f"{split}_dataloader")()


def whole(data, split):
    """All samples of a split in the order of its file: bits (N, T) bool, labels (N,) int64."""
    x, y = zip(*loader(data, split).dataset, strict=True)
    return torch.stack(x).squeeze(-1).bool().numpy(), torch.stack(y).numpy()


def digest(data):
    sha = hashlib.sha256()
    for split in SPLITS:
        for array in whole(data, split):
            sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def files(folder):
    """Name and content of all there is in a folder, temporary files too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def cache_file(folder, split):
    (path,) = folder.glob(f"bitstream-{split}-*.bits")
    return path


# The bits


def test_bits_are_the_published_ones(tmp_path):
    assert digest(make(tmp_path)) == SMALL_SHA256


def test_bits_do_not_depend_on_the_block_size(tmp_path, monkeypatch):
    monkeypatch.setattr(bitstream_cache, "_BLOCK_DRAWS", 7 * SMALL["steps"] + 1)
    assert digest(make(tmp_path)) == SMALL_SHA256


def test_another_instance_and_folder_give_the_same_bytes(tmp_path):
    make(tmp_path / "a")
    make(tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("num_samples", [1, 9, 60, 64])
def test_classes_are_balanced_and_shuffled(tmp_path, num_samples):
    _, labels = whole(make(tmp_path, num_samples=num_samples), "train")
    counts = np.bincount(labels, minlength=10)
    assert counts.sum() == num_samples
    assert counts.max() - counts.min() <= 1
    if num_samples == 60:
        assert not np.array_equal(labels, np.arange(60) % 10)
        assert not np.array_equal(labels, np.sort(labels))


@pytest.mark.parametrize("split", SPLITS)
def test_share_of_ones_follows_the_class(tmp_path, split):
    sizes = {"num_samples": 400, "num_val_samples": 400, "num_test_samples": 400}
    bits, labels = whole(make(tmp_path, steps=500, **sizes), split)
    for label in range(10):
        p = 0.05 + 0.1 * label
        ones = bits[labels == label]
        # Five standard deviations of the mean of 20,000 bits, then of each step's 40.
        assert abs(ones.mean() - p) < 5 * np.sqrt(p * (1 - p) / ones.size)
        assert np.abs(ones.mean(axis=0) - p).max() < 5 * np.sqrt(p * (1 - p) / len(ones))


def test_steps_are_independent(tmp_path):
    bits, labels = whole(make(tmp_path, steps=500, num_samples=400), "train")
    noise = bits - (0.05 + 0.1 * labels[:, None])
    noise /= noise.std()
    for lag in (1, 2, 7, 8, 64, 128):
        products = noise[:, lag:] * noise[:, :-lag]
        assert abs(products.mean()) < 5 / np.sqrt(products.size)
    assert len(np.unique(bits, axis=0)) == len(bits)


def test_probabilities_zero_and_one_are_exact(tmp_path):
    data = make(tmp_path, num_classes=3, first_probability=1, probability_step=-0.5)
    bits, labels = whole(data, "train")
    assert bits[labels == 0].all()
    assert not bits[labels == 2].any()
    assert 0.4 < bits[labels == 1].mean() < 0.6


@pytest.mark.parametrize("first, step, ones", [(0.1 + 1e-12, 0.3, True), (0.3, -0.1, False)])
def test_probabilities_may_leave_the_range_by_rounding(tmp_path, first, step, ones):
    assert not 0 <= first + 3 * step <= 1
    settings = {"num_classes": 4, "first_probability": first, "probability_step": step}
    bits, labels = whole(make(tmp_path, **settings), "train")
    assert (bits[labels == 3] == ones).all()


def test_seeds_and_splits_differ(tmp_path):
    size = {f"num_{split}samples": 60 for split in ("", "val_", "test_")}
    data = [make(tmp_path, seed=seed, **size) for seed in (0, 1, 2**64 - 1)]
    rows = np.concatenate([whole(one, split)[0] for one in data for split in SPLITS])
    # Streams of the extreme classes repeat by chance; those of the middle ones do not.
    middle = np.abs(rows.mean(axis=1) - 0.5) < 0.2
    assert len(np.unique(rows[middle], axis=0)) == middle.sum() > 100
    orders = {whole(one, split)[1].tobytes() for one in data for split in SPLITS}
    assert len(orders) == 9


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


def test_training_order_follows_torchs_generator(tmp_path):
    data = make(tmp_path, steps=200)
    rows = {row.tobytes(): index for index, row in enumerate(whole(data, "train")[0])}

    def epoch(batches):
        return [rows[row.tobytes()] for x, _ in batches for row in x.squeeze(-1).bool().numpy()]

    batches = data.train_dataloader()
    seed_everything(3)
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


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec")
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


# The cache


def test_cache_is_reused(tmp_path, monkeypatch):
    first = make(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(times) == 3
    monkeypatch.setattr(bitstream_cache, "_write", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert digest(make(tmp_path)) == digest(first)
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


def test_cache_names_tell_the_settings_apart(tmp_path):
    changes = {
        "steps": 51,
        "seed": 1,
        "num_samples": 61,
        "num_classes": 9,
        "first_probability": 0.0500001,
        "probability_step": 0.0999999,
    }
    for name, value in [("batch_size", 3), ("num_workers", 1), *changes.items()]:
        make(tmp_path, **{name: value})
    assert len(list(tmp_path.glob("bitstream-train-*.bits"))) == 1 + len(changes)
    assert any("n61-t50-c10-p0.05-step0.1-seed0-" in name for name in files(tmp_path))


def test_format_version_is_part_of_the_name(tmp_path, monkeypatch):
    make(tmp_path)
    monkeypatch.setattr(bitstream_cache, "_FORMAT_VERSION", bitstream_cache._FORMAT_VERSION + 1)
    make(tmp_path)
    assert len(files(tmp_path)) == 6


def test_packed_file_takes_a_bit_a_bit(tmp_path):
    make(tmp_path, steps=1000, num_samples=100)
    size = cache_file(tmp_path, "train").stat().st_size
    assert 100 * 125 < size < 100 * (125 + 8) + 500


@pytest.mark.parametrize("step", ["prepare_data", "setup"])
@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda content: b"", "holds 0 bytes"),
        (lambda content: content[:-1], "bytes; wanted"),
        (lambda content: content[: len(content) // 2], "bytes; wanted"),
        (lambda content: content + b"\0", "bytes; wanted"),
        (lambda content: b"x" * len(content), "something else wrote it"),
        (lambda content: content.replace(b'"seed": 0', b'"seed": 1', 1), "something else"),
        (flip(400), "checksum"),
        (flip(-33), "checksum"),
        (flip(-1), "checksum"),
    ],
    ids=["empty", "short", "half", "long", "foreign", "settings", "label", "bit", "digest"],
)
def test_damaged_cache_is_made_again(tmp_path, damage, reason, step):
    make(tmp_path)
    good = files(tmp_path)
    path = cache_file(tmp_path, "train")
    damaged = damage(good[path.name])
    assert damaged != good[path.name]
    path.write_bytes(damaged)
    data = BitstreamDataModule(tmp_path, **SMALL)
    with pytest.warns(UserWarning, match=f"{path.name} cannot be used.*{reason}") as caught:
        getattr(data, step)()
    assert len(caught) == 1 and caught[0].filename == __file__
    assert files(tmp_path) == good
    data.setup()
    assert digest(data) == SMALL_SHA256


def test_setup_loads_only_what_the_stage_needs(tmp_path):
    data = BitstreamDataModule(tmp_path, **SMALL)
    data.setup("test")
    assert [name.split("-")[1] for name in files(tmp_path)] == ["test"]
    assert len(data.test_dataloader().dataset) == 20
    with pytest.raises(RuntimeError, match="train split is not loaded; call setup"):
        data.train_dataloader()
    data.setup("fit")
    assert len(data.val_dataloader().dataset) == 40
    with pytest.raises(ValueError, match="stage is 'trian'; wanted one of .*'fit'"):
        data.setup("trian")


def test_printing_makes_no_data(tmp_path):
    data = BitstreamDataModule(tmp_path / "data", **SMALL)
    assert "Train dataloader: None" in str(data)
    assert not (tmp_path / "data").exists()


# Interruptions and company


@pytest.mark.parametrize("place", ["numpy.packbits", "os.fsync", "os.replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interruption_leaves_nothing(tmp_path, monkeypatch, place, error):
    monkeypatch.setattr(bitstream_cache, "_BLOCK_DRAWS", 500)
    module, name = place.split(".")
    owner = {"numpy": np, "os": os}[module]
    original, calls = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        calls.append(files(tmp_path))
        if name != "packbits" or len(calls) == 3:
            raise error
        return original(*args, **kwargs)

    data = BitstreamDataModule(tmp_path, **SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(place, interrupted)
        with pytest.raises(error):
            data.prepare_data()
    (seen,) = calls[-1]
    assert seen.endswith(".tmp")
    assert files(tmp_path) == {}
    assert digest(make(tmp_path)) == SMALL_SHA256


def prepare_and_stop_in(place, folder, reached):
    """Prepares the data in a process of its own and stops for good at the third call there."""
    name = place.split(".")[1]
    original, calls = getattr(np if name == "packbits" else os, name), []

    def stopped(*args, **kwargs):
        calls.append(name)
        if name != "packbits" or len(calls) == 3:
            reached.set()
            time.sleep(60)
        return original(*args, **kwargs)

    bitstream_cache._BLOCK_DRAWS = 500
    pytest.MonkeyPatch().setattr(place, stopped)
    BitstreamDataModule(folder, **SMALL).prepare_data()


@needs_fork
@pytest.mark.parametrize("place", ["numpy.packbits", "os.fsync", "os.replace"])
def test_kill_leaves_nothing_under_the_final_name(tmp_path, place):
    reached = fork.Event()
    process = fork.Process(target=prepare_and_stop_in, args=(place, tmp_path, reached), daemon=True)
    process.start()
    assert reached.wait(30)
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL

    (left,) = files(tmp_path)
    assert left.endswith(".tmp")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert digest(make(tmp_path)) == SMALL_SHA256
    assert left in files(tmp_path)
    os.utime(tmp_path / left, (time.time() - 2 * 86400,) * 2)
    make(tmp_path, seed=1)
    assert left not in files(tmp_path)
    assert len(list(tmp_path.glob("*.bits"))) == 6


def prepare_in_company(folder, barrier):
    """Prepares the data and waits, before each file gets its final name, for the others."""
    replace = os.replace

    def together(*args):
        barrier.wait(30)
        replace(*args)

    pytest.MonkeyPatch().setattr(os, "replace", together)
    BitstreamDataModule(folder, **SMALL).prepare_data()


@needs_fork
def test_processes_at_once_end_with_one_whole_cache(tmp_path):
    barrier = fork.Barrier(2)
    args = (tmp_path / "shared", barrier)
    processes = [fork.Process(target=prepare_in_company, args=args, daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    make(tmp_path / "alone")
    assert files(tmp_path / "shared") == files(tmp_path / "alone")
    assert digest(make(tmp_path / "shared")) == SMALL_SHA256


def test_threads_at_once_end_with_one_whole_cache(tmp_path):
    threads = [threading.Thread(target=make, args=(tmp_path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files(tmp_path)) == 3
    assert digest(make(tmp_path)) == SMALL_SHA256


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
