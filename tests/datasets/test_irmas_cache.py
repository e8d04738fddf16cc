"""The cache files of IRMASDataModule: reused, damaged, interrupted, shared."""

import contextlib
import errno
import os
import re
import signal
import time
import warnings

import pytest
import torch
from support.cache_damage import flip
from support.irmas_data import (
    SHAPES,
    fake_extract,
    files,
    fork,
    make,
    needs_fork,
    whole,
    write_fake,
)

from bppsa_lightning.datasets import IRMASDataModule, irmas_audio, irmas_cache

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def test_cache_is_reused_by_every_split_and_batch_size(corpus, monkeypatch):
    first = make(corpus)
    before = files(corpus)
    assert sorted(name[-5:] for name in before) == [".lock", ".mfcc"]
    monkeypatch.setattr(irmas_cache, "extract", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for settings in ({}, {"seed": 1}, {"batch_size": 3}, {"val_split": 0.5}):
            other = make(corpus, **settings)
    assert files(corpus) == before
    assert torch.equal(whole(first)[0], whole(make(corpus))[0])
    assert whole(other)[2] != whole(first)[2] and sorted(whole(other)[2]) == sorted(whole(first)[2])


@pytest.mark.parametrize("change", ["content", "time", "new", "removed", "renamed", "mode"])
def test_cache_is_made_again_when_a_file_changes(corpus, change):
    make(corpus)
    path = corpus / "cel" / "[cel][cla]0001__1.wav"
    if change == "content":
        path.write_bytes(b"RIFF 99")
    elif change == "time":
        os.utime(path, (1, 1))
    elif change == "new":
        write_fake(path.with_name("new.wav"), 5)
    elif change == "removed":
        path.unlink()
    elif change == "renamed":
        path.rename(path.with_name("[cel][cla]0001__9.wav"))
    else:
        path.chmod(0o600)
    data = make(corpus)
    assert len(list(corpus.glob("*.mfcc"))) == 2
    count = 88 + {"new": 1, "removed": -1}.get(change, 0)
    assert len(whole(data)[1]) == count
    if change == "content":
        assert (whole(data)[0] == 99).any()


def test_settings_have_caches_of_their_own(corpus):
    for features in "SML":
        for backend in ("librosa", "torchaudio"):
            x, _, _ = whole(make(corpus, features=features, backend=backend))
            assert x.shape[1:] == SHAPES[features]
    assert len(list(corpus.glob("*.mfcc"))) == 6
    make(corpus, cache_dir=corpus / "elsewhere", backend="torchaudio", device="meta")
    assert [path.name for path in (corpus / "elsewhere").glob("*.mfcc")] == [
        path.name for path in corpus.glob("irmas-S-torchaudio-*.mfcc")
    ]


@pytest.mark.parametrize("step", ["prepare_data", "setup"])
@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda content: b"", "something else wrote it"),
        (lambda content: content[:-1], "checksum"),
        (lambda content: content[: len(content) // 2], "checksum"),
        (lambda content: content + b"\0", "checksum"),
        (lambda content: b"\x80\x04" + content[2:], "something else wrote it"),
        (flip(1000), "checksum"),
        (flip(-40), "checksum"),
        (flip(-1), "checksum"),
    ],
    ids=["empty", "short", "half", "long", "foreign", "feature", "report", "digest"],
)
def test_damaged_cache_is_made_again(corpus, damage, reason, step):
    make(corpus)
    good = files(corpus)
    (path,) = corpus.glob("*.mfcc")
    path.write_bytes(damage(good[path.name]))
    data = IRMASDataModule(corpus)
    with pytest.warns(UserWarning, match=f"{path.name} cannot be used.*{reason}") as caught:
        getattr(data, step)()
    assert len(caught) == 1 and caught[0].filename == __file__
    assert files(corpus) == good


@pytest.mark.parametrize("place", ["extract", "os.fsync", "os.replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interruption_leaves_nothing(corpus, monkeypatch, place, error):
    def interrupted(*args, **kwargs):
        if place == "extract":
            yield from fake_extract(args[0][:5], *args[1:])
        raise error

    def interrupted_call(*args):
        raise error

    with monkeypatch.context() as patch:
        if place == "extract":
            patch.setattr(irmas_cache, "extract", interrupted)
        else:
            patch.setattr(place, interrupted_call)
        with pytest.raises(error):
            IRMASDataModule(corpus).prepare_data()
    assert [name[-5:] for name in files(corpus)] == [".lock"]
    assert len(whole(make(corpus))[1]) == 88


REFUSALS = [
    (lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files"),
    (lambda: pytest.importorskip("soundfile").LibsndfileError(2), "System error"),
]


@pytest.mark.parametrize("refusal, reason", REFUSALS, ids=["open", "libsndfile"])
def test_a_file_that_the_system_refused_is_not_bad_for_good(tmp_path, monkeypatch, refusal, reason):
    pytest.importorskip("librosa", reason="the audio extra brings librosa")
    from support.irmas_corpus import write_corpus

    names = write_corpus(tmp_path, ("cel", "org"), recordings=2)
    (tmp_path / "cel" / "link.wav").symlink_to("nowhere")  # is refused for good
    check, settings = irmas_audio._check_whole, {"val_split": 0.25, "test_split": 0}

    def refuses(path):
        if path == tmp_path / names[0]:
            raise refusal()
        check(path)

    with monkeypatch.context() as patch:
        patch.setattr(irmas_audio, "_check_whole", refuses)
        with pytest.warns(UserWarning, match=rf"2 of 5(.|\n)*{re.escape(names[0])}: .*{reason}"):
            make(tmp_path, **settings)
        patch.setattr(irmas_cache, "extract", None)  # is not called while nothing has changed
        with pytest.warns(UserWarning, match="2 of 5"):
            make(tmp_path, **settings)
    again = rf"made again: {re.escape(names[0])} could not be read then, and can be now"
    with (
        pytest.warns(UserWarning, match=again),
        pytest.warns(UserWarning, match="1 of 5"),
    ):
        assert sorted(whole(make(tmp_path, **settings))[2]) == names
    monkeypatch.setattr(irmas_cache, "extract", None)
    with pytest.warns(UserWarning, match="1 of 5 .*skipped"):
        assert sorted(whole(make(tmp_path, **settings))[2]) == names


def prepare_and_stop(folder, reached):
    def stopped(paths, *args):
        yield from fake_extract(paths[:5], *args)
        reached.set()
        time.sleep(60)

    irmas_cache.extract = stopped
    IRMASDataModule(folder).prepare_data()


@needs_fork
def test_kill_leaves_nothing_that_is_taken_for_whole(corpus):
    reached = fork.Event()
    process = fork.Process(target=prepare_and_stop, args=(corpus, reached), daemon=True)
    process.start()
    assert reached.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    assert not list(corpus.glob("*.mfcc"))
    (left,) = corpus.glob(".irmas-*.tmp")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(whole(make(corpus))[1]) == 88
    os.utime(left, (1, 1))
    make(corpus, features="M")
    assert not left.exists()


def prepare_in_company(folder, barrier, computed):
    def counted(*args):
        with computed.get_lock():
            computed.value += 1
        time.sleep(0.5)
        return fake_extract(*args)

    irmas_cache.extract = counted
    barrier.wait(60)
    IRMASDataModule(folder).prepare_data()


def in_company(folder, count):
    """Prepares the data in processes at once; returns how many computed it."""
    barrier, computed = fork.Barrier(count), fork.Value("i", 0)
    args = (folder, barrier, computed)
    processes = [
        fork.Process(target=prepare_in_company, args=args, daemon=True) for _ in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * count
    return computed.value


@needs_fork
def test_processes_at_once_compute_one_whole_cache(corpus):
    assert in_company(corpus, 3) == 1
    (path,) = corpus.glob("*.mfcc")
    together = path.read_bytes()
    path.unlink()
    make(corpus)
    assert path.read_bytes() == together


@needs_fork
def test_without_locks_the_last_of_two_processes_wins(corpus, monkeypatch):
    monkeypatch.setattr(irmas_cache, "locked", lambda path: contextlib.nullcontext())
    assert in_company(corpus, 2) == 2
    assert [name[-5:] for name in files(corpus)] == [".mfcc"]
    assert len(whole(make(corpus))[1]) == 88
