"""Rendered instruments: right pitch, whole files, real stereo, same bytes again, clear errors."""

import importlib.util
import json
import os
import shutil
import warnings

import numpy as np
import pytest

for package in ("pretty_midi", "midirenderer", "soundfile", "joblib", "scipy"):
    pytest.importorskip(package, reason=f"needs {package}, of the extra audio")

import soundfile  # noqa: E402

from bppsa_lightning.datasets import render_instruments  # noqa: E402
from bppsa_lightning.datasets.rendering import corpus as rendering_corpus  # noqa: E402
from bppsa_lightning.datasets.rendering import phrases, recording, room, synthesis  # noqa: E402
from bppsa_lightning.datasets.rendering.corpus import render_corpus  # noqa: E402
from bppsa_lightning.datasets.rendering.instruments import INSTRUMENTS  # noqa: E402
from bppsa_lightning.datasets.rendering.performance import Bend, Note, Part  # noqa: E402

SOUNDS = [(code, sound) for code, i in INSTRUMENTS.items() for sound in i.sounds]
RATE = synthesis.RATE


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "irmas"
    assert render_corpus(folder, per_class=2, jobs=1, progress=False)
    return folder


def sounding(pitch, program, seconds=1.2, semitones=0.0, synthesiser="midirenderer"):
    part = Part(program, notes=[Note(0.05, seconds, pitch, 100)], bends=[Bend(0.0, semitones)])
    return synthesis.synthesise([part], seconds, synthesis.find_soundfont(), synthesiser)


def spectrum(sound):
    """Power of the sound after its attack, and the width of a bin in Hz."""
    x = sound[RATE // 4 : RATE].mean(1)
    x = (x - x.mean()) * np.hanning(len(x))
    return np.abs(np.fft.rfft(x, 1 << 18)) ** 2, RATE / (1 << 18)


def harmonic_power(power, bin_width, pitch):
    """Power within 30 cents of the first eight harmonics of a MIDI pitch.

    Of the pitches from a third below to a tritone above a note's, the note's own has the most; a
    fourth below would have the fifth that organs add, as its octave.
    """
    fundamental = 440 * 2 ** ((pitch - 69) / 12)
    bounds = np.outer(np.arange(1, 9), 2 ** (np.array([-0.3, 0.3]) / 12)) * fundamental
    return sum(power[round(low / bin_width) : round(high / bin_width) + 1].sum()
               for low, high in bounds)  # fmt: skip


@pytest.mark.parametrize("code,sound", SOUNDS, ids=lambda v: str(getattr(v, "program", v)))
def test_every_sound_has_the_pitch_of_its_note(code, sound):
    for pitch in ((2 * sound.low + sound.high) // 3, (sound.low + 2 * sound.high) // 3):
        power, bin_width = spectrum(sounding(pitch, sound.program))
        candidates = range(pitch - 4, pitch + 7)
        found = [harmonic_power(power, bin_width, candidate) for candidate in candidates]
        assert candidates[int(np.argmax(found))] == pitch, found


def test_octaves_are_right():
    """The lowest partial of instruments that have a fundamental."""
    for program, pitch in ((73, 72), (42, 48), (0, 60), (71, 60), (40, 76)):
        power, bin_width = spectrum(sounding(pitch, program))
        frequency = np.argmax(power > 0.01 * power.max()) * bin_width
        assert abs(12 * np.log2(frequency / 440) + 69 - pitch) < 1, (program, frequency)


def test_a_bend_moves_the_pitch_and_silence_is_silent():
    power, bin_width = spectrum(sounding(72, 73, semitones=0.5))
    plain, _ = spectrum(sounding(72, 73))
    assert 45 < 1200 * np.log2(power.argmax() / plain.argmax()) < 55
    assert room.level(synthesis.synthesise([Part(73)], 0.5, synthesis.find_soundfont())) == -np.inf


def test_fluidsynth_renders_the_same_note():
    if shutil.which("fluidsynth") is None:
        pytest.skip("needs the program fluidsynth: apt-get install fluidsynth")
    ours, other = (sounding(67, 73, synthesiser=name) for name in synthesis.SYNTHESISERS)
    assert ours.shape == other.shape == (round(1.2 * RATE), 2)
    ours_at, other_at = (spectrum(sound)[0].argmax() for sound in (ours, other))
    assert abs(1200 * np.log2(ours_at / other_at)) < 10
    assert abs(room.level(ours) - room.level(other)) < 6


def test_files_are_as_irmas_has_them(corpus):
    assert sorted(path.name for path in corpus.iterdir()) == sorted([*INSTRUMENTS, "manifest.json"])
    levels = []
    for code in INSTRUMENTS:
        paths = sorted((corpus / code).iterdir())
        assert len(paths) == 2
        assert [path.name[-7:] for path in paths] == ["__1.wav", "__2.wav"]
        assert len({path.name[:-7] for path in paths}) == 1 and paths[0].name.startswith(
            f"[{code}]"
        )
        for path in paths:
            about = soundfile.info(path)
            assert (about.samplerate, about.channels, about.frames) == (44100, 2, 3 * 44100)
            assert about.subtype == "PCM_16"
            samples, _ = soundfile.read(path, dtype="float32")
            assert np.abs(samples).max() < 0.9  # nowhere near full scale: nothing clips
            assert np.abs(samples[:, 0] - samples[:, 1]).max() > 1e-3
            # Something sounds in each second of most excerpts, and no channel is empty.
            assert all(room.level(samples[:, [channel]]) > -50 for channel in (0, 1))
            levels.append(room.level(samples))
    assert max(levels) - min(levels) > 6


def test_two_excerpts_are_different_music_in_the_same_room(corpus):
    one, two = (soundfile.read(path)[0] for path in sorted((corpus / "pia").iterdir()))
    assert np.abs(one - two).max() > 0.01
    first, second = recording.draw(0, "pia", 7), recording.draw(0, "pia", 18)
    assert first != second and first == recording.draw(0, "pia", 7)
    assert first != recording.draw(1, "pia", 7)


@pytest.mark.slow
def test_same_seed_same_bytes_in_any_process_and_a_smaller_corpus_is_a_part(
    corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(rendering_corpus, "_FILES_A_PROCESS", 1)
    assert render_corpus(tmp_path / "small", per_class=1, jobs=2, progress=False)
    files = [path.relative_to(tmp_path / "small") for path in tmp_path.rglob("*.wav")]
    assert len(files) == 11
    for file in files:
        assert (corpus / file).read_bytes() == (tmp_path / "small" / file).read_bytes(), file


@pytest.mark.slow
def test_a_whole_corpus_is_recognised_and_a_damaged_one_rendered_again(corpus, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(corpus, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.wav")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not render_corpus(folder, per_class=2, checksums=True, progress=False)
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*.wav")}

    damaged = next((folder / "vio").iterdir())
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not render_corpus(folder, per_class=2, progress=False)  # of the right size
    with pytest.warns(UserWarning, match="is missing or damaged"):
        assert render_corpus(folder, per_class=2, checksums=True, jobs=1, progress=False)
    assert damaged.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == [".copy.lock", "copy"]


def test_what_is_not_ours_is_left_alone(corpus, tmp_path):
    other = tmp_path / "music"
    other.mkdir()
    (other / "song.wav").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="holds no rendered corpus"):
        render_corpus(other, per_class=1, overwrite=True)
    assert (other / "song.wav").read_bytes() == b"mine"
    with pytest.raises(FileExistsError, match="per_class 2, wanted 1; seed 0, wanted 5"):
        render_corpus(corpus, per_class=1, seed=5)


def test_nothing_half_is_left_when_rendering_fails(tmp_path, monkeypatch):
    monkeypatch.setitem(
        synthesis.SYNTHESISERS, "midirenderer", lambda midi, font: np.zeros((9, 2), np.float32)
    )
    with pytest.raises(ValueError, match=r"program \d+ \(cel\) is silent; wanted a General MIDI"):
        render_corpus(tmp_path / "out", per_class=1, jobs=1, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == [".out.lock"]


@pytest.mark.parametrize(
    "arguments,error,message",
    [
        ({"per_class": 0}, ValueError, "per_class is 0; wanted an integer from 1 to 2727"),
        ({"per_class": 1.5}, TypeError, "per_class is 1.5"),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"jobs": 0}, ValueError, "jobs is 0"),
        ({"out": 3}, TypeError, "out is 3"),
        ({"synthesiser": "kazoo"}, ValueError, "synthesiser is 'kazoo'; wanted one of"),
        ({"soundfont": "/nowhere.sf2"}, FileNotFoundError, "/nowhere.sf2.*apt-get install"),
        ({"soundfont": __file__}, ValueError, "no SoundFont 2 file"),
    ],
)
def test_errors_name_the_argument(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        render_corpus(**{"out": tmp_path / "out", "per_class": 1, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_named_with_what_installs_it(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(synthesis, "find_spec", lambda n: None if n == "midirenderer" else find(n))
    with pytest.raises(
        ImportError, match=r"pip install.*midirenderer.*fluidsynth.*apt-get install"
    ):
        render_corpus(tmp_path / "out", per_class=1)
    monkeypatch.setattr(synthesis, "find_spec", lambda name: None)
    monkeypatch.setattr(synthesis, "_WHERE_INSTALLED", ())
    with pytest.raises(FileNotFoundError, match=r"pip install.*apt-get install"):
        synthesis.find_soundfont()
    monkeypatch.undo()
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(ImportError, match="program fluidsynth was not found; apt-get install"):
        render_corpus(tmp_path / "out", per_class=1, synthesiser="fluidsynth")


def test_command_line(corpus, tmp_path, capsys):
    assert render_instruments.main(["--out", str(corpus), "--per-class", "2"]) == 0
    assert "was there already, whole" in capsys.readouterr().out
    assert render_instruments.main(["--out", str(corpus), "--per-class", "4"]) == 2
    assert "pass another folder, or overwrite" in capsys.readouterr().err
    with pytest.raises(SystemExit) as done:
        render_instruments.main(["--help"])
    assert done.value.code == 0 and "fluidsynth" in capsys.readouterr().out


def test_the_manifest_says_what_was_rendered(corpus):
    manifest = json.loads((corpus / "manifest.json").read_text())
    assert manifest["per_class"] == 2 and len(manifest["files"]) == 22
    assert manifest["soundfont_name"].endswith(".sf2") and len(manifest["soundfont"]) == 64


@pytest.mark.parametrize("name", phrases.TEXTURES)
def test_phrases_stay_in_their_register_and_fill_their_time(name):
    for number in range(30):
        rng = recording.draw(3, "pia", number).random("test")
        pitches = phrases.scale_pitches(rng.randrange(12), "minor", 50, 69)
        style = phrases.Style(60 / rng.uniform(60, 150), pitches, 0.9, 80, 10, 0.01, 0.01)
        notes = list(phrases.TEXTURES[name](rng, style, 4.0))
        assert {note.pitch for note in notes} <= set(pitches)
        assert all(0 <= n.start < n.end and 1 <= n.velocity <= 127 for n in notes)
        assert min(note.start for note in notes) < 2.5
        assert max(note.end for note in notes) > 2


def test_a_room_rings_and_colours():
    rng = recording.draw(0, "cel", 1).random("test")
    click = np.zeros((2 * RATE, 2), np.float32)
    click[0] = 0.5
    dry = room.reverberate(click, 1.0, 0.0, rng)
    assert np.allclose(dry, click, atol=1e-4)
    wet = room.reverberate(click, 1.0, 0.3, rng)
    assert wet.shape == click.shape and wet.dtype == np.float32
    assert np.isclose(np.square(wet).sum(), np.square(click).sum(), rtol=0.02)
    assert room.level(wet[RATE // 4 : RATE // 2]) > room.level(wet[RATE // 2 : 3 * RATE // 4]) + 5
    assert room.level(wet[round(1.1 * RATE) :]) < -100
    noise = room.add_noise(np.zeros_like(click), -20, rng)
    assert abs(room.level(noise) + 20) < 0.1
    dull = np.abs(np.fft.rfft(room.colour(noise, -3.0)[:, 0])) / np.abs(np.fft.rfft(noise[:, 0]))
    assert np.isclose(20 * np.log10(dull[4000 * 2]), -6, atol=0.2) and np.isclose(dull[1000], 1)
    assert np.abs(room.limit(noise * 100)).max() < 0.9
