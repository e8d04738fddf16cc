"""Phrases: random but musical notes in a key, a register and a tempo.

A texture is a function (rng, style, seconds) that yields notes from time 0 until `seconds` are
filled; TEXTURES has them by name. Beats are quarter notes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from .performance import Note

SCALES = {
    "major": (0, 2, 4, 5, 7, 9, 11),
    "minor": (0, 2, 3, 5, 7, 8, 10),
    "dorian": (0, 2, 3, 5, 7, 9, 10),
    "pentatonic": (0, 2, 4, 7, 9),
    "blues": (0, 3, 5, 6, 7, 10),
}
# Durations in beats, each figure a unit that is heard often.
_FIGURES = (
    (1.0,),
    (0.5, 0.5),
    (0.25, 0.25, 0.25, 0.25),
    (0.75, 0.25),
    (1.5, 0.5),
    (2.0,),
    (1 / 3, 1 / 3, 1 / 3),
    (0.5, 0.25, 0.25),
    (0.5, 1.0, 0.5),
)
_RESTS = 0.08  # how often a note of a line is left out


@dataclass(frozen=True)
class Style:
    """How one excerpt of a recording is played.

    Args:
        beat: seconds of a quarter note.
        pitches: those of the scale within the register, rising.
        length: sounding part of a note's time: 0.35 staccato, 1.05 legato.
        velocity: mean velocity. accent: how far it varies.
        jitter: standard deviation of a start, in seconds.
        strum: seconds between the notes of a chord.
    """

    beat: float
    pitches: tuple[int, ...]
    length: float
    velocity: float
    accent: float
    jitter: float
    strum: float

    def note(self, rng: Random, time: float, duration: float, pitch: int) -> Note:
        """A note at `time`, of `duration` seconds before its articulation, as a person plays it."""
        start = max(0.0, time + rng.gauss(0, self.jitter))
        velocity = round(min(max(rng.gauss(self.velocity, self.accent), 20), 127))
        return Note(start, start + max(duration * self.length, 0.04), pitch, velocity)


def scale_pitches(tonic: int, scale: str, low: int, high: int) -> tuple[int, ...]:
    """The pitches of a scale from `low` to `high`; `tonic` is 0 (C) to 11 (B)."""
    degrees = SCALES[scale]
    return tuple(p for p in range(low, high + 1) if (p - tonic) % 12 in degrees)


def line(rng: Random, style: Style, seconds: float) -> Iterator[Note]:
    """A melody: mostly steps, some leaps, in figures of rhythm."""
    index = rng.randrange(len(style.pitches))
    for time, duration in _rhythm(rng, style, seconds):
        index = _walk(rng, index, len(style.pitches))
        if rng.random() > _RESTS:
            yield style.note(rng, time, duration, style.pitches[index])


def held(rng: Random, style: Style, seconds: float) -> Iterator[Note]:
    """Notes of two beats and more."""
    index, time = rng.randrange(len(style.pitches)), 0.0
    while time < seconds:
        duration = rng.uniform(2, 6) * style.beat
        yield style.note(rng, time, duration, style.pitches[index])
        index = _walk(rng, index, len(style.pitches))
        time += duration


def run(rng: Random, style: Style, seconds: float) -> Iterator[Note]:
    """Fast notes up and down the scale."""
    count = len(style.pitches)
    index, direction = rng.randrange(count), rng.choice((-1, 1))
    duration = style.beat * rng.choice((0.25, 1 / 3, 0.5))
    for step in range(int(seconds / duration) + 1):
        yield style.note(rng, step * duration, duration, style.pitches[index])
        if not 0 <= index + direction < count or rng.random() < 0.12:
            direction = -direction
        index = min(max(index + direction, 0), count - 1)


def repeated(rng: Random, style: Style, seconds: float) -> Iterator[Note]:
    """One pitch several times, then the next."""
    index = rng.randrange(len(style.pitches))
    duration, left = style.beat * rng.choice((0.25, 0.5, 1.0)), rng.randint(2, 6)
    for step in range(int(seconds / duration) + 1):
        if not left:
            index, left = _walk(rng, index, len(style.pitches)), rng.randint(2, 6)
        left -= 1
        yield style.note(rng, step * duration, duration, style.pitches[index])


def separate(rng: Random, style: Style, seconds: float) -> Iterator[Note]:
    """Single notes with silence between them, of any pitch of the register."""
    time = 0.0
    while time < seconds:
        duration = rng.uniform(0.3, 1.2)
        yield style.note(rng, time, duration, rng.choice(style.pitches))
        time += duration + rng.uniform(0.1, 0.5)


def double_stops(rng: Random, style: Style, seconds: float) -> Iterator[Note]:
    """A melody with a second voice a third or a sixth of the scale below."""
    below = rng.choice((2, 5))
    for note in line(rng, style, seconds):
        yield note
        index = style.pitches.index(note.pitch) - below
        if index >= 0:
            yield note._replace(pitch=style.pitches[index])


def arpeggio(rng: Random, style: Style, seconds: float) -> Iterator[Note]:
    """Broken chords whose notes ring on."""
    duration, time = style.beat * rng.choice((0.25, 1 / 3, 0.5)), 0.0
    while time < seconds:
        chord = chord_of(rng, style.pitches, rng.randint(3, 5))
        order = rng.choice((chord, chord[::-1], chord + chord[-2:0:-1]))
        for _ in range(rng.choice((1, 2))):
            for pitch in order:
                note = style.note(rng, time, duration, pitch)
                yield note._replace(end=note.end + rng.uniform(0, 2) * duration)
                time += duration


def chords(rng: Random, style: Style, seconds: float) -> Iterator[Note]:
    """Block chords in a rhythm, the same chord for some strokes."""
    chord, left = chord_of(rng, style.pitches, rng.randint(2, 5)), rng.randint(1, 5)
    for time, duration in _rhythm(rng, style, seconds):
        if not left:
            chord, left = chord_of(rng, style.pitches, rng.randint(2, 5)), rng.randint(1, 5)
        left -= 1
        yield from _strike(rng, style, time, duration, chord)


def held_chords(rng: Random, style: Style, seconds: float) -> Iterator[Note]:
    """Chords of two beats and more."""
    time = 0.0
    while time < seconds:
        duration = rng.uniform(2, 6) * style.beat
        chord = chord_of(rng, style.pitches, rng.randint(2, 4))
        yield from _strike(rng, style, time, duration, chord)
        time += duration


def melody_and_chords(rng: Random, style: Style, seconds: float) -> Iterator[Note]:
    """Two hands: chords in the lower half of the register, a melody in the upper."""
    middle = len(style.pitches) // 2
    for texture, pitches in ((line, style.pitches[middle:]), (chords, style.pitches[:middle])):
        hand = Style(**{**vars(style), "pitches": pitches or style.pitches})
        yield from texture(rng, hand, seconds)


TEXTURES: dict[str, Callable[[Random, Style, float], Iterator[Note]]] = {
    texture.__name__: texture
    for texture in (line, held, run, repeated, separate, double_stops, arpeggio, chords,
                    held_chords, melody_and_chords)
}  # fmt: skip


def chord_of(rng: Random, pitches: tuple[int, ...], notes: int) -> tuple[int, ...]:
    """Stacked thirds of the scale, now and then with a fourth; as many notes as there is room."""
    index = rng.randrange(max(1, len(pitches) - 2 * notes))
    chord: list[int] = []
    while len(chord) < notes and index < len(pitches):
        chord.append(pitches[index])
        index += 2 if rng.random() < 0.8 else 3
    return tuple(chord)


def _strike(
    rng: Random, style: Style, time: float, duration: float, chord: tuple[int, ...]
) -> Iterator[Note]:
    order = chord if rng.random() < 0.7 else chord[::-1]
    for position, pitch in enumerate(order):
        yield style.note(rng, time + position * style.strum, duration, pitch)


def _rhythm(rng: Random, style: Style, seconds: float) -> Iterator[tuple[float, float]]:
    time = 0.0
    while time < seconds:
        for beats in rng.choice(_FIGURES):
            yield time, beats * style.beat
            time += beats * style.beat


def _walk(rng: Random, index: int, count: int) -> int:
    """The next note of a melody: a step four times in five, else a leap; within the register."""
    step = rng.choice((-2, -1, -1, 1, 1, 2)) if rng.random() < 0.8 else rng.randint(-5, 5)
    if not 0 <= index + step < count:
        step = -step
    return min(max(index + step, 0), count - 1)
