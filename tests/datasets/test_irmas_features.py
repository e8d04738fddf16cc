"""The features of IRMAS are the paper's recipe, by librosa and by torchaudio."""

import numpy as np
import pytest
import torch
from support.irmas_corpus import INSTRUMENTS, RATE, sound, write_corpus, write_wav
from support.irmas_data import HALF, RECIPES, SHAPES, whole

from bppsa_lightning.datasets import IRMASDataModule, irmas_extract
from bppsa_lightning.datasets.irmas_audio import read_excerpt
from bppsa_lightning.datasets.irmas_features import SETTINGS, arrange, librosa_features
from bppsa_lightning.datasets.irmas_torchaudio import torchaudio_features

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


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


@pytest.mark.parametrize("device", ["cuda:63", "meta"])
def test_a_device_that_this_machine_lacks_is_named(tmp_path, device):
    write_corpus(tmp_path, ("cel",), recordings=1)
    data = IRMASDataModule(tmp_path, backend="torchaudio", device=device)
    with pytest.raises(RuntimeError, match=f"device is '{device}', where .*; wanted a device of"):
        data.prepare_data()
    assert not list(tmp_path.glob("*.mfcc"))


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
