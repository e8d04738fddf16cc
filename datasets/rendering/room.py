"""From a dry sound to what a microphone in a room records: reverberation, colour, noise, level."""

from random import Random

import numpy as np
import numpy.typing as npt

from .synthesis import RATE, Sound

_PEAK = 10 ** (-1 / 20)  # 1 dB below full scale
_EARLY = (0.007, 0.06)  # seconds between which the first reflections arrive
_REFLECTIONS = 8
_PREDELAY = 0.012  # seconds until the tail begins
_LOWEST = 20.0  # Hz
_PIVOT = 1000.0  # Hz, where the colour leaves the level as it is


def reverberate(sound: Sound, seconds: float, wet: float, rng: Random) -> Sound:
    """The sound in a room whose tail falls by 60 dB in `seconds`; the highs fall faster.

    Left and right get tails of their own, as two ears or microphones do. `wet` is the share of the
    room in the impulse response's energy, 0 to 1. The length stays.
    """
    from scipy.signal import oaconvolve

    response = _response(seconds, rng)
    response *= np.sqrt(wet / np.square(response).sum(0))
    response[0] += np.sqrt(1 - wet)
    return oaconvolve(sound, response.astype(np.float32), axes=0)[: len(sound)]


def _response(seconds: float, rng: Random) -> npt.NDArray[np.float64]:
    """Early reflections and a tail of decaying noise: (samples, 2)."""
    from scipy.signal import lfilter

    noise = np.random.Generator(np.random.PCG64(rng.getrandbits(64)))
    length = round(max(seconds, _EARLY[1] + 0.02) * RATE)
    time = np.arange(length) / RATE
    bright = noise.standard_normal((length, 2))
    dull = lfilter([0.15], [1, -0.85], bright, axis=0) * 3
    decay = np.exp(-6.9 * time / seconds)[:, None]
    share = np.exp(-3 * time / seconds)[:, None]  # of the bright part
    tail = decay * (share * bright + (1 - share) * dull)
    tail[: round(_PREDELAY * RATE)] = 0
    for _ in range(_REFLECTIONS):
        arrival = rng.uniform(*_EARLY)
        loudness = 12 * np.exp(-6.9 * arrival / seconds) * rng.choice((-1, 1))
        tail[round(arrival * RATE), rng.randrange(2)] += loudness
    return tail


def colour(sound: Sound, tilt: float) -> Sound:
    """The sound as the microphone takes it.

    `tilt` decibels are added for each octave above 1 kHz, 12 dB at most; below 20 Hz nothing is
    left (soundfonts have samples with an offset).
    """
    spectrum = np.fft.rfft(sound, axis=0)
    frequency = np.fft.rfftfreq(len(sound), 1 / RATE)
    octaves = np.log2(np.maximum(frequency, _PIVOT) / _PIVOT)
    gain = 10 ** (np.clip(tilt * octaves, -12, 12) / 20) * (frequency >= _LOWEST)
    return np.fft.irfft(spectrum * gain[:, None], len(sound), axis=0).astype(np.float32)


def level(sound: Sound) -> float:
    """Root mean square of both channels, in decibels of full scale; -inf for silence."""
    power = float(np.square(sound, dtype=np.float64).mean())
    return 10 * np.log10(power) if power else -np.inf


def set_level(sound: Sound, decibels: float) -> Sound:
    """The sound at that level."""
    return sound * np.float32(10 ** ((decibels - level(sound)) / 20))


def add_noise(sound: Sound, decibels: float, rng: Random) -> Sound:
    """The sound with white noise of that level added."""
    noise = np.random.Generator(np.random.PCG64(rng.getrandbits(64)))
    return sound + noise.standard_normal(sound.shape, np.float32) * np.float32(
        10 ** (decibels / 20)
    )


def limit(sound: Sound) -> Sound:
    """The sound, made softer as a whole if its peak would come within 1 dB of full scale."""
    peak = float(np.abs(sound).max())
    return sound if peak <= _PEAK else sound * np.float32(_PEAK / peak)
