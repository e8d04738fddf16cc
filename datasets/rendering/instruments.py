"""The eleven instruments of IRMAS: General MIDI programs, real ranges, ways of playing.

Pitches are MIDI numbers (60 is middle C), programs are General MIDI's, counted from 0.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sound:
    """A program within the range that the real instrument has.

    Args:
        program: General MIDI program, 0 to 127.
        low: lowest pitch. high: highest pitch.
        weight: how often it is chosen, relative to the instrument's other sounds.
        plucked: whether a note rings by itself, so that no swell or vibrato follows its attack.
    """

    program: int
    low: int
    high: int
    weight: float = 1.0
    plucked: bool = False


@dataclass(frozen=True)
class Instrument:
    """What is played on it, and how.

    Args:
        name: in English.
        sounds: its programs.
        textures: {name of a function in `phrases.TEXTURES`: how often}.
        glides: how often a note begins below its pitch and slides up to it.
        strum_seconds: between the notes of a chord.
    """

    name: str
    sounds: tuple[Sound, ...]
    textures: dict[str, float] = field(default_factory=dict)
    glides: float = 0.0
    strum_seconds: float = 0.0


_MELODIC = {"line": 4.0, "held": 3.0, "run": 1.5, "repeated": 1.0, "separate": 1.0}
_BOWED = {**_MELODIC, "double_stops": 1.0, "arpeggio": 0.5}
_GUITAR = {
    "line": 3.0,
    "chords": 3.0,
    "arpeggio": 3.0,
    "run": 1.0,
    "repeated": 0.5,
    "separate": 0.5,
}
_KEYS = {"line": 2.0, "chords": 3.0, "arpeggio": 2.5, "run": 1.5, "melody_and_chords": 2.0}
_ORGAN = {**_KEYS, "held_chords": 3.0}
_VOICE = {"line": 3.0, "held": 4.0, "held_chords": 1.0, "repeated": 0.5, "separate": 1.0}

# In the order of IRMAS's classes. Pizzicato strings (program 45) are shared between violin and
# cello, each in its range, as in life.
INSTRUMENTS = {
    "cel": Instrument(
        "cello", (Sound(42, 36, 76, 9), Sound(45, 36, 60, plucked=True)), _BOWED, glides=0.1
    ),
    "cla": Instrument("clarinet", (Sound(71, 50, 91),), _MELODIC, glides=0.05),
    "flu": Instrument("flute", (Sound(73, 60, 96, 9), Sound(72, 74, 105)), _MELODIC),
    "gac": Instrument(
        "acoustic guitar",
        (Sound(24, 40, 79, plucked=True), Sound(25, 40, 81, plucked=True)),
        _GUITAR,
        glides=0.05,
        strum_seconds=0.018,
    ),
    "gel": Instrument(
        "electric guitar",
        (
            Sound(26, 40, 84, plucked=True),
            Sound(27, 40, 86, plucked=True),
            Sound(28, 40, 80, 0.5, plucked=True),
            Sound(29, 40, 86),
            Sound(30, 40, 86),
        ),
        _GUITAR,
        glides=0.2,
        strum_seconds=0.012,
    ),
    "org": Instrument(
        "organ",
        (
            Sound(16, 36, 91),
            Sound(17, 36, 91),
            Sound(18, 36, 91),
            Sound(19, 36, 96),
            Sound(20, 41, 89, 0.5),
        ),
        _ORGAN,
    ),
    "pia": Instrument(
        "piano",
        (
            Sound(0, 28, 100, 4, plucked=True),
            Sound(1, 28, 100, 2, plucked=True),
            Sound(2, 28, 100, plucked=True),
            Sound(3, 33, 96, 0.5, plucked=True),
        ),
        _KEYS,
        strum_seconds=0.002,
    ),
    "sax": Instrument(
        "saxophone",
        (Sound(64, 56, 88), Sound(65, 49, 81, 2), Sound(66, 44, 76, 2), Sound(67, 36, 69)),
        _MELODIC,
        glides=0.25,
    ),
    "tru": Instrument("trumpet", (Sound(56, 54, 86, 4), Sound(59, 54, 84)), _MELODIC, glides=0.08),
    "vio": Instrument(
        "violin", (Sound(40, 55, 96, 9), Sound(45, 55, 88, plucked=True)), _BOWED, glides=0.12
    ),
    "voi": Instrument(
        "voice",
        (Sound(52, 43, 79, 2), Sound(53, 43, 79, 2), Sound(54, 48, 79)),
        _VOICE,
        glides=0.3,
    ),
}
