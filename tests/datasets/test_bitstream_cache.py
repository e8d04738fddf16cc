"""The cache files of the bitstream datamodule: reused, damaged, interrupted, shared."""

import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest
from support.bitstream import SMALL, SMALL_SHA256, cache_file, digest, files, fork, make, needs_fork
from support.cache_damage import flip

from bppsa_lightning.datasets import BitstreamDataModule, bitstream_cache

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


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


def test_a_directory_in_the_place_of_the_file_is_named(tmp_path):
    make(tmp_path)
    path = cache_file(tmp_path, "train")
    path.unlink()
    (path / "kept").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none says that the file is made again
        with pytest.raises(IsADirectoryError, match=f"{path.name} is a directory; wanted a cache"):
            make(tmp_path)
    assert (path / "kept").is_dir()


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
