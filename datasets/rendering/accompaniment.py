"""The others: a soft accompaniment in the recording's genre, key and tempo.

Its programs are none of the eleven instruments', so that a label stays true.
"""

from collections.abc import Callable, Iterator
from random import Random

from . import performance, phrases
from .performance import Bend, Control, Note, Part
from .recording import Recording

# General MIDI programs: strings, harp, horn, bassoon; pads; vibraphone, marimba; accordion,
# harmonica, banjo, pan flute.
_CHORD_PROGRAMS = {
    "cla": (48, 49, 46, 60, 70),
    "pop_roc": (50, 88, 89, 90, 95),
    "jaz_blu": (11, 12, 61),
    "cou_fol": (21, 22, 105, 110),
    "lat_sou": (12, 11, 114),
}
_BASS_PROGRAMS = {"cla": 43, "pop_roc": 33, "jaz_blu": 32, "cou_fol": 32, "lat_sou": 33}
_KICK, _SNARE, _HAT, _RIDE, _CONGA, _OPEN_CONGA, _MARACAS, _CLAVES = 36, 38, 42, 51, 62, 63, 70, 75


def accompany(recording: Recording, excerpt: int, seconds: float) -> list[Part]:
    """Chords, bass and, where the recording has them, drums; nothing for a solo."""
    if recording.accompaniment is None:
        return []
    rng = recording.random(f"accompaniment {excerpt}")
    parts = []
    # The programs and who plays are the recording's, what they play the excerpt's.
    cast = recording.random("cast")
    program = cast.choice(_CHORD_PROGRAMS[recording.genre])
    plays_chords, plays_bass = cast.choice(((True, True), (True, False), (False, True)))
    if plays_chords or recording.genre == "cla":
        parts.append(_chords(rng, recording, program, seconds))
    if plays_bass:
        parts.append(_bass(rng, recording, seconds))
    if recording.drums:
        beat = 60 / recording.tempo
        pattern = _DRUMS.get(recording.genre, _rock)
        notes = [_hit(rng, time * beat, key) for time, key in pattern(int(seconds / beat) + 1)]
        parts.append(Part(drums=True, notes=notes))
    for part in parts:
        part.controls.append(Control(0.0, performance.PAN, cast.randint(34, 94)))
        if not part.drums:
            part.bends.append(Bend(0.0, recording.cents / 100))
    return parts


def _chords(rng: Random, recording: Recording, program: int, seconds: float) -> Part:
    style = _style(recording, 50, 76, length=0.95)
    texture = rng.choice((phrases.held_chords, phrases.held_chords, phrases.chords,
                          phrases.arpeggio))  # fmt: skip
    return Part(program, notes=list(texture(rng, style, seconds)))


def _bass(rng: Random, recording: Recording, seconds: float) -> Part:
    style = _style(recording, 29, 48, length=0.9)
    texture = phrases.line if recording.genre in ("jaz_blu", "cla") else phrases.repeated
    return Part(_BASS_PROGRAMS[recording.genre], notes=list(texture(rng, style, seconds)))


def _style(recording: Recording, low: int, high: int, length: float) -> phrases.Style:
    pitches = phrases.scale_pitches(recording.tonic, recording.scale, low, high)
    return phrases.Style(60 / recording.tempo, pitches, length, 80, 6, 0.006, 0.008)


def _hit(rng: Random, time: float, key: int) -> Note:
    return Note(time, time + 0.1, key, rng.randint(70, 105))


def _rock(beats: int) -> Iterator[tuple[float, int]]:
    """Times in beats, and the drum kit's keys."""
    for beat in range(beats):
        yield beat, _SNARE if beat % 2 else _KICK
        yield beat, _HAT
        yield beat + 0.5, _HAT


def _swing(beats: int) -> Iterator[tuple[float, int]]:
    for beat in range(beats):
        yield beat, _RIDE
        if beat % 2:
            yield beat + 2 / 3, _RIDE
            yield beat, _HAT


def _latin(beats: int) -> Iterator[tuple[float, int]]:
    for beat in range(beats):
        yield beat, _CONGA
        yield beat + 0.5, _OPEN_CONGA
        yield from ((beat + 0.25 * step, _MARACAS) for step in range(4))
        if beat % 2 == 0:
            yield from ((beat + step, _CLAVES) for step in (0, 0.75))


_DRUMS: dict[str, Callable[[int], Iterator[tuple[float, int]]]] = {
    "jaz_blu": _swing,
    "lat_sou": _latin,
}
