"""What a synthesiser is told: notes, and what bends or swells them, with times in seconds."""

from dataclasses import dataclass, field
from typing import NamedTuple

MODULATION, VOLUME, PAN, EXPRESSION = 1, 7, 10, 11  # MIDI controllers
REVERB_SEND, CHORUS_SEND = 91, 93


class Note(NamedTuple):
    """A MIDI pitch (60 is middle C) from `start` to `end`, struck with `velocity` 1 to 127."""

    start: float
    end: float
    pitch: int
    velocity: int


class Control(NamedTuple):
    """A MIDI controller set to `value`, 0 to 127."""

    time: float
    number: int
    value: int


class Bend(NamedTuple):
    """All notes of the part moved by `semitones`, -2 to 2, from `time` on."""

    time: float
    semitones: float


@dataclass
class Part:
    """One player: a General MIDI program, or the drum kit."""

    program: int = 0
    drums: bool = False
    notes: list[Note] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    bends: list[Bend] = field(default_factory=list)
