"""A recording: what its excerpts share, and the music of each excerpt.

Everything follows from (seed, instrument, number of the recording) through Python's own generator,
whose sequence is the same in every version.
"""

from dataclasses import dataclass
from random import Random

from . import performance, phrases
from .instruments import INSTRUMENTS, Instrument, Sound
from .performance import Bend, Control, Part

# Of IRMAS's file names: how often, and how often with drums.
GENRES = {"cla": (0.4, 0.0), "pop_roc": (0.3, 0.7), "jaz_blu": (0.15, 0.6), "cou_fol": (0.1, 0.3),
          "lat_sou": (0.05, 0.7)}  # fmt: skip
_REGISTER = 19  # semitones that a recording stays within
_SWELL_SECONDS = 0.05  # between two settings of expression


@dataclass(frozen=True)
class Recording:
    """What the excerpts of one recording share.

    Args:
        seed: of the corpus.
        instrument: code of the leading instrument, such as "cel".
        number: of the recording, from 1, unique in the corpus.
        sound: the program played.
        genre: one of GENRES. drums: whether there is a drum kit.
        accompaniment: decibels of the others relative to the leading instrument; None for a solo.
        tempo: beats a minute.
        tonic, scale: key. register: lowest and highest pitch.
        cents: tuning, relative to 440 Hz.
        velocity: mean of the notes'.
        pan: -1 (left) to 1.
        level: root mean square of an excerpt, in decibels of full scale.
        reverberation: seconds until the room's sound has fallen by 60 dB.
        wet: share of the room in the sound's energy, 0 to 1.
        tilt: decibels an octave that the microphone adds upwards of 1 kHz (negative: dull).
        noise: decibels of full scale of the background noise.
    """

    seed: int
    instrument: str
    number: int
    sound: Sound
    genre: str
    drums: bool
    accompaniment: float | None
    tempo: float
    tonic: int
    scale: str
    register: tuple[int, int]
    cents: float
    velocity: float
    pan: float
    level: float
    reverberation: float
    wet: float
    tilt: float
    noise: float

    def file_name(self, excerpt: int) -> str:
        """Name as in IRMAS, such as "[cel][nod][cla]0001__1.wav"; excerpts count from 1."""
        drums = "dru" if self.drums else "nod"
        return f"[{self.instrument}][{drums}][{self.genre}]{self.number:04d}__{excerpt}.wav"

    def random(self, purpose: str) -> Random:
        """A generator of its own for each purpose."""
        return Random(f"{self.seed}/{self.instrument}/{self.number}/{purpose}")


def draw(seed: int, instrument: str, number: int) -> Recording:
    """The recording of this number."""
    rng = Random(f"{seed}/{instrument}/{number}")
    sounds = INSTRUMENTS[instrument].sounds
    sound = rng.choices(sounds, [s.weight for s in sounds])[0]
    genre = rng.choices(list(GENRES), [often for often, _ in GENRES.values()])[0]
    drums = rng.random() < GENRES[genre][1]
    accompanied = drums or rng.random() < 0.5
    low = rng.randint(sound.low, max(sound.low, sound.high - _REGISTER))
    return Recording(
        seed=seed,
        instrument=instrument,
        number=number,
        sound=sound,
        genre=genre,
        drums=drums,
        accompaniment=rng.uniform(-24, -9) if accompanied else None,
        tempo=rng.uniform(66, 152),
        tonic=rng.randrange(12),
        scale=rng.choice(list(phrases.SCALES)),
        register=(low, min(low + _REGISTER, sound.high)),
        cents=rng.gauss(0, 12),
        velocity=rng.uniform(60, 112),
        pan=rng.uniform(-0.6, 0.6),
        level=rng.uniform(-30, -15),
        reverberation=rng.uniform(0.2, 2.4),
        wet=rng.uniform(0.02, 0.4),
        tilt=rng.uniform(-3, 1.5),
        noise=rng.uniform(-84, -62),
    )


def lead(recording: Recording, phrase: str, seconds: float) -> Part:
    """The leading instrument's part, filling `seconds`; another one for each name of a phrase."""
    rng = recording.random(f"lead {phrase}")
    instrument = INSTRUMENTS[recording.instrument]
    textures = instrument.textures
    texture = phrases.TEXTURES[rng.choices(list(textures), list(textures.values()))[0]]
    part = Part(recording.sound.program)
    part.notes += texture(rng, _style(rng, recording, instrument), seconds)
    part.controls.append(_pan(recording.pan))
    part.bends.append(Bend(0.0, recording.cents / 100))
    if not recording.sound.plucked:
        _vibrato(rng, part)
        _swell(rng, part, seconds)
    _glide(rng, part, instrument, recording.cents / 100)
    return part


def _style(rng: Random, recording: Recording, instrument: Instrument) -> phrases.Style:
    pitches = phrases.scale_pitches(recording.tonic, recording.scale, *recording.register)
    return phrases.Style(
        beat=60 / recording.tempo,
        pitches=pitches,
        length=rng.choices(
            (rng.uniform(0.25, 0.5), rng.uniform(0.6, 0.9), rng.uniform(0.95, 1.08)), (1, 2, 3)
        )[0],
        velocity=recording.velocity,
        accent=rng.uniform(3, 14),
        jitter=rng.uniform(0.002, 0.015),
        strum=instrument.strum_seconds * rng.uniform(0.3, 1.8),
    )


def _pan(position: float) -> Control:
    return Control(0.0, performance.PAN, round(64 + 63 * position))


def _vibrato(rng: Random, part: Part) -> None:
    """A vibrato of its own depth on each longer note, from a third of it on."""
    depth = rng.uniform(0, 70)
    for note in part.notes:
        if note.end - note.start > 0.35:
            begin = note.start + (note.end - note.start) / 3
            value = round(min(depth * rng.uniform(0.5, 1.5), 127))
            part.controls += (
                Control(begin, performance.MODULATION, value),
                Control(note.end, performance.MODULATION, 0),
            )


def _swell(rng: Random, part: Part, seconds: float) -> None:
    """Loudness that rises and falls over the phrase."""
    depth, period, phase = rng.uniform(0, 45), rng.uniform(0.8, 4), rng.random()
    for step in range(int(seconds / _SWELL_SECONDS)):
        time = step * _SWELL_SECONDS
        triangle = abs(2 * ((time / period + phase) % 1) - 1)
        part.controls.append(Control(time, performance.EXPRESSION, round(127 - depth * triangle)))


def _glide(rng: Random, part: Part, instrument: Instrument, tuning: float) -> None:
    """Some notes begin flat and slide to their pitch."""
    for note in part.notes:
        if rng.random() < instrument.glides:
            below, duration = rng.uniform(0.4, 1.6), rng.uniform(0.04, 0.14)
            for step in range(9):
                time = note.start + duration * step / 8
                part.bends.append(Bend(time, tuning - below * (1 - step / 8)))
