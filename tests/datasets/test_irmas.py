"""IRMASDataModule: its features, splits, stages, cache file, errors."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from support.cache_damage import flip
from support.irmas_corpus import INSTRUMENTS, RATE, sound, write_corpus, write_wav

from bppsa_lightning.datasets import IRMASDataModule, irmas_cache, irmas_extract
from bppsa_lightning.datasets.irmas_audio import read_excerpt
from bppsa_lightning.datasets.irmas_features import SETTINGS, arrange, librosa_features
from bppsa_lightning.datasets.irmas_split import split_by_recording
from bppsa_lightning.datasets.irmas_torchaudio import torchaudio_features

SPLITS = ("train", "val", "test")
RECIPES = {"S": (512, 4096, 20), "M": (256, 2048, 13), "L": (128, 1024, 7)}
SHAPES = {"S": (259, 38), "M": (517, 24), "L": (1034, 12)}
HALF = {"val_split": 0.25, "test_split": 0.25}

fork = multiprocessing.get_context("fork") if hasattr(os, "fork") else None
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
needs_fork = pytest.mark.skipif(fork is None, reason="needs fork")


def files(folder):
    """Name and content of all there is of the cache, temporary files and locks too."""
    return {path.name: path.read_bytes() for path in folder.glob("*irmas-*")}


def whole(data):
    """All batches of all splits: x (N, T, F), y (N,), names of the files."""
    sets = [data._datasets[name] for name in SPLITS]
    x, y = zip(*[part.__getitems__(list(range(len(part)))) for part in sets])
    return torch.cat(x), torch.cat(y), [e.name for part in sets for e in part.excerpts]


# The features


def recipe(path, features):
    """The paper's recipe, by librosa and scikit-learn alone."""
    import librosa
    from sklearn.preprocessing import scale

    hop_length, n_fft, n_mfcc = RECIPES[features]
    audio, rate = librosa.load(path, sr=None, mono=False)
    settings = {"n_mfcc": n_mfcc, "n_fft": n_fft, "hop_length": hop_length}
    parts = [librosa.feature.mfcc(y=channel, sr=rate, **settings)[1:] for channel in audio]
    return np.concatenate([scale(part.astype(np.float64), axis=1) for part in parts]).T


@pytest.mark.parametrize("features", RECIPES)
def test_features_are_the_papers(tmp_path, features):
    pytest.importorskip("librosa", reason="the audio extra brings librosa")
    write_corpus(tmp_path, ("cel", "org"), recordings=2)
    data = IRMASDataModule(tmp_path, features, 3, **HALF)
    data.prepare_data()
    data.setup()
    x, y, names = whole(data)
    frames, width = SHAPES[features]
    assert x.shape == (4, frames, width) and x.dtype == torch.float32 and y.dtype == torch.int64
    assert (data.num_frames, data.num_features) == (frames, width)
    for found, label, name in zip(x, y, names):
        assert INSTRUMENTS[label] == name[:3]
        np.testing.assert_allclose(found, recipe(tmp_path / name, features), atol=1e-5)


def test_each_coefficient_is_scaled_and_a_silent_channel_gives_zeros(tmp_path):
    pytest.importorskip("librosa", reason="the audio extra brings librosa")
    audio = read_excerpt(write_wav(tmp_path / "a.wav"))
    audio[1] = 0
    for backend in (librosa_features, by_torchaudio):
        for mfcc in SETTINGS.values():
            x = backend(audio, mfcc)
            left, right = np.split(x, 2, axis=1)
            np.testing.assert_allclose(left.mean(axis=0), 0, atol=1e-5)
            np.testing.assert_allclose(left.std(axis=0), 1, atol=1e-5)
            assert np.array_equal(right, np.zeros_like(right))
            assert np.array_equal(backend(np.zeros_like(audio), mfcc), np.zeros_like(x))


def by_torchaudio(audio, mfcc, dtype=torch.float32):
    pytest.importorskip("torchaudio", reason="the audio extra brings torchaudio")
    return arrange(torchaudio_features(torch.from_numpy(audio)[None].to(dtype), mfcc)[0].numpy())


TONES = 2 * np.pi * np.array([[220], [440]]) * np.arange(3 * RATE) / RATE
SIGNALS = {
    "noise": 0.1 * np.random.default_rng(0).standard_normal((2, 3 * RATE)),
    "quiet noise": 1e-4 * np.random.default_rng(0).standard_normal((2, 3 * RATE)),
    "sounds": sound(3).T,
    "tones": np.sin(TONES) / 2,
    # The 80 dB count from the loudest of each channel.
    "one channel quiet": np.sin(TONES) * [[1], [1e-3]],
}


@pytest.mark.parametrize("features", RECIPES)
@pytest.mark.parametrize("signal", SIGNALS)
def test_torchaudio_agrees_with_librosa(signal, features):
    """Measured: 1.2e-5 on noise, 7.4e-5 on sounds, 7.2e-4 on tones."""
    pytest.importorskip("librosa", reason="the audio extra brings librosa")
    audio, mfcc = SIGNALS[signal].astype(np.float32), SETTINGS[features]
    tolerance = {"noise": 3e-5, "sounds": 2e-4}.get(signal, 1e-3)
    wanted = librosa_features(audio, mfcc)
    np.testing.assert_allclose(by_torchaudio(audio, mfcc), wanted, atol=tolerance)


@pytest.mark.parametrize("features", RECIPES)
@pytest.mark.parametrize("signal", SIGNALS)
def test_torchaudio_with_exact_tables_is_librosa(signal, features):
    """In float64, tables (window, filters, DCT) too, nothing is left of the difference."""
    librosa = pytest.importorskip("librosa", reason="the audio extra brings librosa")
    audio, mfcc = SIGNALS[signal].astype(np.float32).astype(np.float64), SETTINGS[features]
    try:
        torch.set_default_dtype(torch.float64)
        found = by_torchaudio(audio, mfcc, torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)
    filters = librosa.filters.mel(sr=RATE, n_fft=mfcc.n_fft, dtype=np.float64)
    wanted = []
    for channel in audio:
        spectrum = librosa.stft(channel, n_fft=mfcc.n_fft, hop_length=mfcc.hop_length)
        decibels = librosa.power_to_db(filters @ np.abs(spectrum) ** 2)
        wanted.append(librosa.feature.mfcc(S=decibels, n_mfcc=mfcc.n_mfcc))
    np.testing.assert_allclose(found, arrange(np.stack(wanted)), atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_torchaudio_on_a_gpu(tmp_path):
    write_corpus(tmp_path, ("cel", "org"), recordings=2)
    found = []
    for device in ("cpu", "cuda"):
        data = IRMASDataModule(
            tmp_path, backend="torchaudio", device=device, cache_dir=tmp_path / device, **HALF
        )
        data.prepare_data()
        data.setup()
        found.append(whole(data)[0])
    torch.testing.assert_close(*found, atol=1e-3, rtol=0)


def test_torchaudio_features_do_not_depend_on_the_batch(tmp_path, monkeypatch):
    pytest.importorskip("torchaudio", reason="the audio extra brings it")
    write_corpus(tmp_path, ("cel", "org"), recordings=3)
    write_wav(tmp_path / "cel" / "short.wav", samples=3 * RATE - 30)
    (tmp_path / "cel" / "bad.wav").write_bytes(b"bad")
    paths = sorted(tmp_path.rglob("*.wav"))
    found = []
    for batch in (1, 3, 64):
        monkeypatch.setattr(irmas_extract, "_BATCH", batch)
        found.append(list(irmas_extract.extract(paths, SETTINGS["L"], "torchaudio", "cpu", 2)))
        assert [isinstance(item, str) for item in found[-1]] == [p.stem == "bad" for p in paths]
    for items in zip(*found):
        for item in items[1:]:
            assert (
                item == items[0] if isinstance(item, str) else np.abs(item - items[0]).max() < 1e-5
            )


# The splits


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("recordings", [4, 10, 57])
def test_no_recording_is_in_two_splits_and_each_label_has_its_share(seed, recordings):
    generator = np.random.default_rng(seed)
    names, labels = [], []
    for label in range(11):
        for recording in range(recordings):
            # Some recordings have two labels, as some of IRMAS have.
            number = label * recordings + recording - int(generator.random() < 0.02)
            names += [str(number)] * int(generator.integers(1, 4))
            labels += [label] * (len(names) - len(labels))
    shares = {"train": 0.8, "val": 0.1, "test": 0.1}
    splits = split_by_recording(names, labels, shares, seed)
    assert sorted(sum(splits.values(), [])) == list(range(len(names)))
    found = {name: {names[i] for i in indices} for name, indices in splits.items()}
    assert not found["train"] & found["val"] | found["train"] & found["test"]
    assert not found["val"] & found["test"]
    total = Counter(labels)
    for name, indices in splits.items():
        counts = Counter(labels[i] for i in indices)
        for label in range(11):
            assert abs(counts[label] - shares[name] * total[label]) <= 4  # a recording, and a bit
        assert abs(len(indices) - shares[name] * len(names)) <= 6


def test_splits_follow_the_seed_alone():
    names = [f"{i // 3:04d}" for i in range(300)]
    labels = [i // 30 for i in range(300)]
    shares = {"train": 0.8, "val": 0.1, "test": 0.1}
    first = split_by_recording(names, labels, shares, 0)
    assert first == split_by_recording(names, labels, shares, 0)
    assert first != split_by_recording(names, labels, shares, 1)
    assert {name: len(part) for name, part in first.items()} == {
        "train": 240,
        "val": 30,
        "test": 30,
    }
    order = np.random.default_rng(0).permutation(300)
    shuffled = split_by_recording([names[i] for i in order], [labels[i] for i in order], shares, 0)
    for name in shares:
        assert {names[order[i]] for i in shuffled[name]} == {names[i] for i in first[name]}


@pytest.mark.parametrize(
    "name, recording",
    [
        ("[cel][cla]0001__1.wav", "0001"),
        ("008__[cel][nod][cla]0058__3.wav", "0058"),
        ("109__[sax][dru][pop_roc]0850__12.WAV", "0850"),
        ("song.wav", "cel/song.wav"),
        ("0058__.wav", "cel/0058__.wav"),
    ],
)
def test_the_recording_is_in_the_name(tmp_path, fake, name, recording):
    write_fake(tmp_path / "cel" / name, 0)
    data = IRMASDataModule(tmp_path, val_split=0, test_split=0)
    data.setup()
    (excerpt,) = data._datasets["train"].excerpts
    assert excerpt.recording == recording


# The cache, over features that cost nothing


def write_fake(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"RIFF {seed}".encode())


def fake_extract(paths, mfcc, backend, device, workers):
    for path in paths:
        content = path.read_bytes()
        if content == b"bad":
            yield "it is bad"
        else:
            seed = int(content.split()[1])
            yield np.full((mfcc.frames, mfcc.features), seed, dtype=np.float32)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(irmas_cache, "extract", fake_extract)


@pytest.fixture
def corpus(tmp_path, fake):
    write_corpus(tmp_path, recordings=4, excerpts=2, write=write_fake)
    return tmp_path


def make(folder, **settings):
    data = IRMASDataModule(folder, **settings)
    data.prepare_data()
    data.setup()
    return data


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


# Scripts as people write them: no guard, several processes, libraries missing


SCRIPT = """
import sys
from bppsa_lightning.datasets import IRMASDataModule, irmas_extract
irmas_extract._FILES_A_WORKER = 2
data = IRMASDataModule(sys.argv[1], val_split=0.25, test_split=0.25, prepare_workers=2)
data.prepare_data()
data.setup("fit")
print("ran", next(iter(data.train_dataloader()))[0].shape[1:])
"""


def test_a_script_without_a_guard_computes_in_processes_what_one_process_does(tmp_path):
    pytest.importorskip("librosa", reason="the audio extra brings librosa")
    write_corpus(tmp_path / "data", ("cel", "org"), recordings=2)
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "data")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0 and ran.stdout.startswith("ran torch.Size([259, 38])"), ran.stderr
    (cache,) = (tmp_path / "data").glob("*.mfcc")
    assert not list((tmp_path / "data").glob(".*.tmp"))
    make(tmp_path / "data", cache_dir=tmp_path, prepare_workers=1, **HALF)
    several, one = ((folder / cache.name).read_bytes() for folder in (cache.parent, tmp_path))
    start, size = several.index(b"\n") + 1, 4 * 259 * 38 * 4
    assert several[:start] == one[:start] and several[start + size : -32] == b"{}"
    a, b = (np.frombuffer(content[start : start + size], "<f4") for content in (several, one))
    np.testing.assert_allclose(a, b, atol=1e-5)


BARE = """
import sys
import lightning.pytorch  # brings some of them where they are installed
for name in ("joblib", "librosa", "soundfile", "soxr", "torchaudio"):
    sys.modules[name] = None
from bppsa_lightning.datasets import IRMASDataModule
assert IRMASDataModule("data").num_features == 38
"""


def test_the_import_needs_none_of_the_libraries_of_audio(tmp_path):
    command = [sys.executable, "-c", BARE]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "missing, settings, wanted",
    [
        ("soundfile", {}, "reads WAV files through soundfile; pip install soundfile"),
        ("librosa", {}, "computes its features with librosa; pip install librosa"),
        ("torchaudio", {"backend": "torchaudio"}, "with torchaudio; pip install torchaudio"),
    ],
)
def test_missing_libraries_are_named_when_they_are_needed(
    tmp_path, monkeypatch, missing, settings, wanted
):
    if missing != "soundfile":
        write_corpus(tmp_path, ("cel",), recordings=1)
    else:
        write_corpus(tmp_path, ("cel",), recordings=1, write=write_fake)
    for name in [*sys.modules]:
        if name.startswith(f"{missing}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    data = IRMASDataModule(tmp_path, **settings)
    with pytest.raises(ImportError, match=wanted):
        data.prepare_data()
    assert not list(tmp_path.glob("*.mfcc"))


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


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec")
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


def test_the_archives_folder_is_found(tmp_path, fake):
    write_corpus(tmp_path / "IRMAS-TrainingData", ("cel",), recordings=9, write=write_fake)
    assert len(whole(make(tmp_path))[1]) == 9


def test_no_data_and_too_few(tmp_path, fake):
    with pytest.raises(FileNotFoundError, match="where no WAV file.*download=True"):
        IRMASDataModule(tmp_path).prepare_data()
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
