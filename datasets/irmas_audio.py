"""Reads an excerpt of three seconds from a WAV file, or says what is wrong with the file.

What is read: stereo or mono (taken for both channels), 8 to 192 kHz (brought to 44.1 kHz by soxr,
as librosa does), three seconds or more (the first three count). What is refused: a file of another
kind, more channels, other rates, less than three seconds, numbers beyond a million, and a file
that is shorter than its header says, which a reader that trusts the file's end would take for
whole.
"""

import math
import os
import stat
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .extras import import_extra

Audio = npt.NDArray[np.float32]

RATE = 44_100
SECONDS = 3
SAMPLES = SECONDS * RATE
# Files of IRMAS may lack a sample of three seconds; this is the least that gives every setting of
# the features its number of frames.
FEWEST_SAMPLES = 132_224
_RATES = (8_000, 192_000)
_FORMATS = ("WAV", "WAVEX", "RF64")
_MOST_CHUNKS = 1000
_HIGHEST = 1e6  # the power of a frame stays far within float32
_SYSTEM_ERROR = 2  # libsndfile's code where the system, not the format, is at fault
# What is said where the system refuses (permission, too many open files, a disk): it may pass.
_UNREADABLE = "it cannot be read: "


class BadAudio(ValueError):
    """A file that is no excerpt; the message says why, without the file's name."""


def may_pass(reason: str) -> bool:
    """Whether the reason for which a file is no excerpt is the system's, and not the file's."""
    return reason.startswith(_UNREADABLE)


def read_excerpt(path: Path) -> Audio:
    """Returns both channels, (2, 132,300) float32 from -1 to 1, up to 76 samples fewer.

    Raises:
        BadAudio: if the file is no whole WAV file of three seconds.
        ImportError: if soundfile is missing.
    """
    soundfile = import_extra("soundfile", "IRMASDataModule reads WAV files through soundfile")
    try:
        _check_whole(path)
        # As bytes: the names of files need not be UTF-8, and soundfile encodes no other.
        with soundfile.SoundFile(os.fsencode(path)) as file:
            _check_format(file)
            frames = math.ceil(SECONDS * file.samplerate)
            # No more is read than is used: a header can promise any length.
            audio = file.read(min(frames, file.frames), dtype="float32", always_2d=True).T
            rate = file.samplerate
    except soundfile.LibsndfileError as error:
        why = _UNREADABLE if error.code == _SYSTEM_ERROR else "it cannot be read as audio: "
        raise BadAudio(f"{why}{error.error_string}") from error
    except OSError as error:
        raise BadAudio(f"{_UNREADABLE}{error.strerror or error}") from error
    peak = float(np.abs(audio).max(initial=0))
    if not peak <= _HIGHEST:
        raise BadAudio(f"it holds the number {peak:g}; wanted at most {_HIGHEST:g} in size")
    audio = _resampled(audio, rate)
    if audio.shape[1] < FEWEST_SAMPLES:
        raise BadAudio(f"it lasts {audio.shape[1] / RATE:.3f} s; wanted at least {SECONDS} s")
    return np.repeat(audio, 2, axis=0) if len(audio) == 1 else audio


def _check_whole(path: Path) -> None:
    """Compares what the header of a WAV file promises with what follows."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise BadAudio("it is not a regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise BadAudio("it is empty")
        if file.read(4) != b"RIFF":  # RF64 or no WAV file at all: left to the library
            return
        file.seek(12)
        for _ in range(_MOST_CHUNKS):
            start = file.read(8)
            if len(start) < 8:
                return
            name, length = struct.unpack("<4sI", start)
            follows = size - file.tell()
            if name == b"data":
                if length > follows:
                    raise BadAudio(
                        f"it is cut off, or its header is wrong: {length} bytes of audio are "
                        f"promised, {follows} follow"
                    )
                return
            file.seek(length + length % 2, os.SEEK_CUR)


def _check_format(file) -> None:  # type: ignore[no-untyped-def]
    if file.format not in _FORMATS:
        raise BadAudio(f"it is a file of the format {file.format}; wanted WAV")
    if file.channels not in (1, 2):
        raise BadAudio(f"it has {file.channels} channels; wanted 1 or 2")
    if not _RATES[0] <= file.samplerate <= _RATES[1]:
        raise BadAudio(
            f"it has {file.samplerate} samples a second; wanted {_RATES[0]} to {_RATES[1]}"
        )


def _resampled(audio: Audio, rate: int) -> Audio:
    if rate != RATE and audio.shape[1]:
        librosa = import_extra("librosa", "IRMASDataModule resamples with librosa")
        audio = librosa.resample(audio, orig_sr=rate, target_sr=RATE, res_type="soxr_hq")
    return np.ascontiguousarray(audio[:, :SAMPLES], dtype=np.float32)
