"""Reading excerpts: what is taken, what is brought into shape, what is refused and why."""

import itertools
import os
import re
import warnings

import numpy as np
import pytest
from support.irmas_corpus import (
    RATE,
    broken_files,
    patched,
    sound,
    wav_bytes,
    write_corpus,
    write_wav,
)

from bppsa_lightning.datasets import IRMASDataModule
from bppsa_lightning.datasets.irmas_audio import BadAudio, read_excerpt

librosa = pytest.importorskip("librosa", reason="the audio extra brings librosa")


def reason(path):
    with pytest.raises(BadAudio) as raised:
        read_excerpt(path)
    return str(raised.value)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_U8", "FLOAT", "DOUBLE"])
def test_stereo_is_read_as_librosa_reads_it(tmp_path, subtype):
    path = write_wav(tmp_path / "a.wav", subtype=subtype)
    wanted, _ = librosa.load(path, sr=None, mono=False)
    audio = read_excerpt(path)
    assert audio.dtype == np.float32 and audio.shape == (2, 3 * RATE)
    assert np.array_equal(audio, wanted)


def test_mono_is_taken_for_both_channels(tmp_path):
    audio = read_excerpt(write_wav(tmp_path / "a.wav", channels=1))
    assert audio.shape == (2, 3 * RATE) and np.array_equal(audio[0], audio[1])


def test_the_first_three_seconds_of_a_long_file_count(tmp_path):
    whole, _ = librosa.load(write_wav(tmp_path / "a.wav", samples=5 * RATE), sr=None, mono=False)
    assert np.array_equal(read_excerpt(tmp_path / "a.wav"), whole[:, : 3 * RATE])


@pytest.mark.parametrize("rate", [8_000, 22_050, 48_000])
def test_other_rates_are_resampled_as_by_librosa(tmp_path, rate):
    path = write_wav(tmp_path / "a.wav", rate=rate, samples=3 * rate)
    wanted, _ = librosa.load(path, sr=RATE, mono=False)
    audio = read_excerpt(path)
    assert audio.shape == (2, 3 * RATE)
    np.testing.assert_allclose(audio, wanted, atol=1e-6)


@pytest.mark.parametrize("missing, taken", [(0, True), (1, True), (76, True), (77, False)])
def test_some_samples_may_be_missing(tmp_path, missing, taken):
    path = write_wav(tmp_path / "a.wav", samples=3 * RATE - missing)
    if taken:
        assert read_excerpt(path).shape == (2, 3 * RATE - missing)
    else:
        assert reason(path) == "it lasts 2.998 s; wanted at least 3 s"


def test_chunks_before_and_after_the_audio_are_passed_over(tmp_path):
    content = wav_bytes()
    extra = b"LIST\x03\x00\x00\x00abc\x00"
    (tmp_path / "a.wav").write_bytes(content[:36] + extra + content[36:] + extra)
    (tmp_path / "b.wav").write_bytes(content)
    assert np.array_equal(read_excerpt(tmp_path / "a.wav"), read_excerpt(tmp_path / "b.wav"))
    (tmp_path / "a.wav").write_bytes(content[:36] + extra + content[36:-8])
    assert reason(tmp_path / "a.wav") == (
        "it is cut off, or its header is wrong: 529200 bytes of audio are promised, 529192 follow"
    )


def test_a_header_of_chunks_without_end_is_given_up(tmp_path):
    content = wav_bytes()
    (tmp_path / "a.wav").write_bytes(content[:36] + b"junk\0\0\0\0" * 200_000 + content[36:])
    assert "cannot be read as audio" in reason(tmp_path / "a.wav")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "link.wav").symlink_to("nowhere")
    assert reason(tmp_path / "pipe.wav") == "it is not a regular file"
    assert reason(tmp_path / "folder.wav") == "it is not a regular file"
    assert reason(tmp_path / "link.wav") == "it cannot be read: No such file or directory"


def test_damaged_headers_are_read_or_refused_and_never_crash(tmp_path):
    generator = np.random.default_rng(0)
    whole, path = wav_bytes(), tmp_path / "a.wav"
    for _ in range(300):
        damaged = bytearray(whole)
        for place in generator.integers(0, 44, generator.integers(1, 5)):
            damaged[place] = generator.integers(256)
        path.write_bytes(damaged)
        try:
            audio = read_excerpt(path)
        except BadAudio:
            continue
        assert audio.shape[0] == 2 and 132_224 <= audio.shape[1] <= 132_300
        assert audio.dtype == np.float32 and np.isfinite(audio).all()


def test_each_of_200_broken_files_is_named_and_none_gets_into_the_data(tmp_path):
    """Also: the cache stays whole, and "raise" names the same files."""
    good = write_corpus(tmp_path, ("cel", "voi"), recordings=3)
    write_wav(tmp_path / "cel" / "mono.wav", channels=1)
    broken = {}
    generator = broken_files(np.random.default_rng(1))
    for number, (kind, content, why) in enumerate(itertools.islice(generator, 200)):
        name = f"{'cel' if number % 2 else 'voi'}/{kind} {number}.wav"
        (tmp_path / name).write_bytes(content)
        broken[name] = why
    settings = {"val_split": 0.3, "test_split": 0.3, "prepare_workers": 1}
    data = IRMASDataModule(tmp_path, **settings)
    with pytest.warns(UserWarning, match="200 of 207 files .* are skipped") as caught:
        data.prepare_data()
    assert len(caught) == 1 and caught[0].filename == __file__
    found = dict(re.findall(r"^  (.*?\.wav): (.*)$", str(caught[0].message), re.MULTILINE))
    assert found.keys() == broken.keys()
    for name, why in broken.items():
        assert re.match(f".*({why})", found[name]), (name, found[name])

    (cache,) = tmp_path.glob("*.mfcc")
    before = cache.read_bytes()
    with pytest.warns(UserWarning, match="200 of 207"):
        data.setup()
    assert cache.read_bytes() == before
    kept = [e.name for name in ("train", "val", "test") for e in data._datasets[name].excerpts]
    assert sorted(kept) == sorted([*good, "cel/mono.wav"])
    for split in ("train", "val", "test"):
        for x, y in getattr(data, f"{split}_dataloader")():
            assert x.isfinite().all() and set(y.tolist()) <= {0, 10}

    strict = IRMASDataModule(tmp_path, on_error="raise", **settings)
    with pytest.raises(ValueError, match='200 of 207 files.*pass on_error="skip"') as raised:
        strict.prepare_data()
    assert all(f"  {name}: " in str(raised.value) for name in broken)
    assert cache.read_bytes() == before
    for name in broken:
        (tmp_path / name).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strict.prepare_data()


@pytest.mark.parametrize("backend", ["librosa", "torchaudio"])
def test_names_that_are_no_utf8_are_read_and_named(tmp_path, backend):
    """As unpacking a Latin-1 archive leaves them."""
    pytest.importorskip(backend, reason="the audio extra brings it")
    folder = tmp_path / "cel"
    folder.mkdir()
    for name, content in ((b"caf\xe9 1", wav_bytes()), (b"caf\xe9 2", b"bad"), (b"a", wav_bytes())):
        (folder / os.fsdecode(name + b".wav")).write_bytes(content)
    data = IRMASDataModule(tmp_path, backend=backend, val_split=0.5, test_split=0)
    for step in (data.prepare_data, data.setup):  # computed; from the cache
        with pytest.warns(UserWarning, match=r"\n  cel/caf\\xe9 2.wav: it cannot be") as caught:
            step()
        assert all(str(warning.message).encode() for warning in caught)
    kept = [e.name for name in ("train", "val") for e in data._datasets[name].excerpts]
    assert sorted(map(os.fsencode, kept)) == [b"cel/a.wav", b"cel/caf\xe9 1.wav"]


def test_float_files_beyond_one_are_kept_as_they_are(tmp_path):
    import soundfile

    loud = 3 * sound(0)
    soundfile.write(tmp_path / "a.wav", loud, RATE, subtype="FLOAT")
    np.testing.assert_allclose(read_excerpt(tmp_path / "a.wav"), loud.T, atol=1e-6)


def test_what_the_riff_header_says_of_the_whole_file_does_not_matter(tmp_path):
    (tmp_path / "a.wav").write_bytes(patched(wav_bytes(), 4, "<I", 100))
    assert read_excerpt(tmp_path / "a.wav").shape == (2, 3 * RATE)
