"""One excerpt: the leading instrument and the others, in their room, as 16-bit samples."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import room
from .accompaniment import accompany
from .recording import Recording, lead
from .synthesis import RATE, Sound, synthesise

SECONDS = 3.0
_LEAD_IN = 1.2  # seconds at most that the music has played when the excerpt begins
_SILENT = -75.0  # decibels of full scale that any sounding program exceeds
_ATTEMPTS = 5


def render_excerpt(
    recording: Recording, number: int, soundfont: Path, synthesiser: str
) -> npt.NDArray[np.int16]:
    """The excerpt with this number: (SECONDS * RATE, 2) int16, left and right.

    Raises:
        ValueError: the soundfont keeps silent for the recording's program.
    """
    rng = recording.random(f"excerpt {number}")
    begin = round(rng.uniform(0.1, _LEAD_IN) * RATE)
    seconds = begin / RATE + SECONDS

    dry = _play_lead(recording, number, begin, seconds, soundfont, synthesiser)
    loudness = room.level(dry[begin:])
    others = accompany(recording, number, seconds)
    if others and recording.accompaniment is not None:
        soft = synthesise(others, seconds, soundfont, synthesiser)
        if room.level(soft) > _SILENT:
            dry = dry + room.set_level(soft, loudness + recording.accompaniment)

    # The room is the recording's: the same reflections in each of its excerpts.
    sound = room.reverberate(dry, recording.reverberation, recording.wet, recording.random("room"))[
        begin:
    ]
    sound = room.set_level(room.colour(sound, recording.tilt), recording.level)
    sound = room.limit(room.add_noise(sound, recording.noise, rng))
    return _to_16_bits(sound)


def _play_lead(
    recording: Recording, number: int, begin: int, seconds: float, soundfont: Path, synthesiser: str
) -> Sound:
    """The leading part, with something to hear from sample `begin` on.

    A phrase may be silent, as soundfonts have gaps (TimGM6mb: the alto saxophone's E4); then
    another one is played.
    """
    for attempt in range(_ATTEMPTS):
        part = lead(recording, f"{number}.{attempt}", seconds)
        dry = synthesise([part], seconds, soundfont, synthesiser)
        if room.level(dry[begin:]) > _SILENT:
            return dry
    raise ValueError(
        f"soundfont is {str(soundfont)!r}, whose program {recording.sound.program} "
        f"({recording.instrument}) is silent; wanted a General MIDI soundfont"
    )


def _to_16_bits(sound: Sound) -> npt.NDArray[np.int16]:
    return np.round(sound * 32767).astype(np.int16)
