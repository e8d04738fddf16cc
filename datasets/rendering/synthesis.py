"""From notes to sound, by a General MIDI soundfont and one of two synthesisers.

midirenderer (MIT; RustySynth inside) comes from PyPI as a wheel and is the default. FluidSynth
(LGPL) is taken as the program `fluidsynth`. The default soundfont is TimGM6mb (Tim Brechbill,
GPL-2), which pretty_midi (MIT) ships inside its package; nothing of it is in this project.
"""

import functools
import io
import shutil
import subprocess
import tempfile
import wave
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import performance
from .performance import Part

Sound = npt.NDArray[np.float32]  # (samples, 2): left and right

RATE = 44100  # samples a second
_TICKS = 960  # of MIDI time, a quarter note: half a millisecond
_BEND_RANGE = 2.0  # semitones of a full bend, MIDI's default
_WHERE_INSTALLED = ("/usr/share/sounds/sf2", "/usr/share/soundfonts")
_NAMES = ("TimGM6mb.sf2", "FluidR3_GM.sf2", "default-GM.sf2")
_PIP = "pip install pretty_midi midirenderer"
_DEBIAN = "apt-get install fluidsynth timgm6mb-soundfont"


def find_soundfont(path: str | Path | None = None) -> Path:
    """`path` if given, else pretty_midi's, else the system's.

    Raises:
        FileNotFoundError: there is none; the message says what to install.
        ValueError: the file is no soundfont.
    """
    found = Path(path).expanduser() if path is not None else _default_soundfont()
    if not found.is_file():
        raise FileNotFoundError(
            f"soundfont is {str(found)!r}, where there is no file; wanted a General MIDI "
            f"soundfont (.sf2), as {_PIP} or {_DEBIAN} bring one"
        )
    with found.open("rb") as file:
        head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"sfbk":
        raise ValueError(f"soundfont is {str(found)!r}, which is no SoundFont 2 file (.sf2)")
    return found


def _default_soundfont() -> Path:
    spec = find_spec("pretty_midi")
    shipped = [
        Path(folder) / _NAMES[0] for folder in (spec and spec.submodule_search_locations) or ()
    ]
    system = [Path(folder) / name for name in _NAMES for folder in _WHERE_INSTALLED]
    for path in (*shipped, *system):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"no General MIDI soundfont was found; {_PIP} brings one, so does "
        f"{_DEBIAN}, or pass the path of another (.sf2) as soundfont"
    )


def need_synthesiser(name: str) -> None:
    """Raises ImportError if that synthesiser, or what it needs, is missing: what installs it."""
    for package in ("pretty_midi", "scipy", "soundfile", "joblib"):
        _need(package)
    if name == "midirenderer":
        _need(name, "or pass synthesiser='fluidsynth', after " + _DEBIAN)
    elif shutil.which("fluidsynth") is None:
        raise ImportError(f"the program fluidsynth was not found; {_DEBIAN}")


def _need(package: str, otherwise: str = "") -> None:
    if find_spec(package) is None:
        message = f"instruments are rendered with {package}, which is missing; {_PIP}"
        raise ImportError(", ".join(filter(None, (message, otherwise))))


def describe_synthesiser(name: str) -> str:
    """Name and version, for a manifest."""
    if name == "midirenderer":
        return f"{name} {version(name)}"
    done = subprocess.run(["fluidsynth", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def synthesise(
    parts: Sequence[Part], seconds: float, soundfont: Path, synthesiser: str = "midirenderer"
) -> Sound:
    """The parts played together, dry, from time 0 on: (seconds * RATE, 2) float32."""
    sound = SYNTHESISERS[synthesiser](_midi(parts, seconds), soundfont)
    wanted = round(seconds * RATE)
    if len(sound) < wanted:
        sound = np.pad(sound, ((0, wanted - len(sound)), (0, 0)))
    return np.ascontiguousarray(sound[:wanted])


def _midi(parts: Sequence[Part], seconds: float) -> bytes:
    """The parts as a Standard MIDI File that lasts for `seconds`, with effects switched off."""
    import pretty_midi

    song = pretty_midi.PrettyMIDI(resolution=_TICKS)
    for part in parts:
        player = pretty_midi.Instrument(part.program, part.drums)
        player.notes = [
            pretty_midi.Note(note.velocity, note.pitch, note.start, note.end)
            for note in _without_overlap(part.notes)
            if note.start < seconds
        ]
        controls = [(performance.VOLUME, 127, 0.0), (performance.REVERB_SEND, 0, 0.0)]
        controls.append((performance.CHORUS_SEND, 0, 0.0))
        controls += [(c.number, c.value, c.time) for c in part.controls]
        # A last event: synthesisers end where the file does.
        controls.append((performance.REVERB_SEND, 0, seconds + 0.1))
        player.control_changes = [pretty_midi.ControlChange(*control) for control in controls]
        player.pitch_bends = [
            pretty_midi.PitchBend(round(bend.semitones / _BEND_RANGE * 8191), bend.time)
            for bend in part.bends
        ]
        song.instruments.append(player)
    file = io.BytesIO()
    song.write(file)
    return file.getvalue()


def _without_overlap(notes: Sequence[performance.Note]) -> list[performance.Note]:
    """Notes of one pitch in a row: MIDI ends all of them with the first one's end."""
    ends: dict[int, tuple[int, float]] = {}
    kept: list[performance.Note] = []
    for note in sorted(notes):
        if note.pitch in ends and ends[note.pitch][1] > note.start:
            index = ends[note.pitch][0]
            kept[index] = kept[index]._replace(end=max(note.start - 0.002, kept[index].start))
        ends[note.pitch] = (len(kept), note.end)
        kept.append(note)
    return [note for note in kept if note.end > note.start]


def _midirenderer(midi: bytes, soundfont: Path) -> Sound:
    import midirenderer
    from scipy.signal import resample_poly

    sound, rate = _read_wave(io.BytesIO(midirenderer.render_wave_from(_content(soundfont), midi)))
    return sound if rate == RATE else resample_poly(sound, RATE, rate, axis=0).astype(np.float32)


def _fluidsynth(midi: bytes, soundfont: Path) -> Sound:
    with tempfile.TemporaryDirectory() as folder:
        score, sound = Path(folder) / "score.mid", Path(folder) / "sound.wav"
        score.write_bytes(midi)
        options = ["-ni", "-q", "-R", "0", "-C", "0", "-g", "0.6", "-r", str(RATE), "-O", "s16"]
        command = [
            "fluidsynth",
            *options,
            "-T",
            "wav",
            "-F",
            str(sound),
            str(soundfont),
            str(score),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode or not sound.is_file():
            raise RuntimeError(f"fluidsynth ended with {done.returncode}: {done.stderr.strip()}")
        return _read_wave(str(sound))[0]


SYNTHESISERS: dict[str, Callable[[bytes, Path], Sound]] = {
    "midirenderer": _midirenderer,
    "fluidsynth": _fluidsynth,
}


@functools.lru_cache(maxsize=1)
def _content(soundfont: Path) -> bytes:
    return soundfont.read_bytes()


def _read_wave(file: Any) -> tuple[Sound, int]:
    with wave.open(file) as sound:
        samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
        rate = sound.getframerate()
    return samples.reshape(-1, 2).astype(np.float32) / np.float32(32768), rate
