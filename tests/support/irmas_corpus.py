"""Small corpora in the layout of IRMAS, and WAV files that are broken in many ways."""

import io
import struct

import numpy as np
import pytest

soundfile = pytest.importorskip("soundfile", reason="the audio extra brings soundfile")

INSTRUMENTS = ("cel", "cla", "flu", "gac", "gel", "org", "pia", "sax", "tru", "vio", "voi")
RATE = 44_100


def sound(seed, samples=3 * RATE, channels=2, rate=RATE):
    """Three fading partials over soft noise, other ones in each channel: (samples, channels)."""
    generator = np.random.default_rng(seed)
    t = np.arange(samples)[:, None] / rate
    x = 1e-3 * generator.standard_normal((samples, channels))
    for _ in range(3):
        pitch = generator.uniform(100, 2000, channels)
        x += 0.2 * np.sin(2 * np.pi * pitch * t) * np.exp(-generator.uniform(0, 3, channels) * t)
    return x


def write_wav(path, seed=0, rate=RATE, subtype="PCM_16", **settings):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, sound(seed, rate=rate, **settings), rate, subtype=subtype, format="WAV")
    return path


def write_corpus(root, instruments=INSTRUMENTS, recordings=3, excerpts=1, write=write_wav):
    """Files named as in IRMAS, recordings numbered through; returns their names."""
    names = []
    for label, instrument in enumerate(instruments):
        for recording in range(recordings):
            for excerpt in range(excerpts):
                number = label * recordings + recording
                name = f"{instrument}/[{instrument}][cla]{number:04d}__{excerpt + 1}.wav"
                (root / instrument).mkdir(parents=True, exist_ok=True)
                write(root / name, 10 * number + excerpt)
                names.append(name)
    return names


def wav_bytes(samples=3 * RATE, channels=2, rate=RATE, format="WAV", subtype="PCM_16"):
    buffer = io.BytesIO()
    x = sound(0, samples, channels, rate)
    soundfile.write(buffer, x, rate, format=format, subtype=subtype)
    return buffer.getvalue()


def patched(content, offset, layout, *values):
    """The content with numbers written over it."""
    new = struct.pack(layout, *values)
    return content[:offset] + new + content[offset + len(new) :]


def broken_files(generator):
    """Yields (kind, content, part of the reason) of files that are no excerpt, without end."""
    whole = wav_bytes()
    flac, ogg = (wav_bytes(format=f, subtype=s) for f, s in (("FLAC", "PCM_16"), ("OGG", "VORBIS")))
    floats = wav_bytes(subtype="FLOAT")
    while True:
        size = int(generator.integers(1, 500_000))
        cut = int(generator.integers(1, len(whole) - 1))
        noise = generator.bytes(size)
        huge = int(generator.integers(len(whole), 2**32))
        yield "empty", b"", "it is empty"
        yield "cut off", whole[: max(44, cut)], "it is cut off|it lasts"
        yield "cut off by little", whole[: -int(generator.integers(1, 300))], "it is cut off"
        yield "cut header", whole[: int(generator.integers(1, 44))], "cannot be read as audio"
        yield "short", wav_bytes(size // 4), r"it lasts \d\.\d+ s; wanted at least 3 s"
        yield "short mono", wav_bytes(size // 4, 1), r"it lasts \d\.\d+ s; wanted"
        yield "huge audio", patched(whole, 40, "<I", huge), "it is cut off, or its header is wrong"
        yield "huge format", patched(whole, 16, "<I", huge), "cannot be read as audio|it lasts 0"
        yield "channels", patched(whole, 22, "<H", 2 + huge % 60_000), "channels|cannot be read"
        yield "rate", patched(whole, 24, "<I", 192_001 + huge % 2**31), "samples a second|cannot be"
        yield "no rate", patched(whole, 24, "<I", 0), "samples a second|cannot be read as audio"
        yield "no format", patched(whole, 20, "<H", 0xBEEF), "cannot be read as audio"
        yield "text", b"not a sound\n" * (size // 12 + 1), "cannot be read as audio"
        yield "noise", noise, "cannot be read as audio"
        yield "zeros", bytes(size), "cannot be read as audio"
        yield "picture", b"\x89PNG\r\n\x1a\n" + noise, "cannot be read as audio"
        yield "archive", b"PK\x03\x04" + noise, "cannot be read as audio"
        yield "flac", flac, "a file of the format FLAC; wanted WAV"
        yield "ogg", ogg, "a file of the format OGG; wanted WAV"
        number = generator.choice([float("nan"), float("inf"), -float("inf"), 3e38, -2e6])
        place = len(floats) - 4 * int(generator.integers(1, 1000))
        yield "number", patched(floats, place, "<f", number), "it holds the number"
