"""The features of `irmas_features`, many excerpts at a time, by torchaudio on the CPU or a GPU.

Features of unit variance differ from librosa's by about 1e-5 on noise, 1e-4 on mixtures of sounds,
up to 7e-4 on a pure tone, where most bands hold nothing but rounding. All of that is the rounding
of torchaudio's tables (window, filters, DCT) to float32: with these and all else in float64, the
two agree to 1e-6.

Dimension letters: N excerpts, T frames, F features, C channels.
"""

import torch

from .extras import import_extra
from .irmas_audio import RATE
from .irmas_features import MFCC


def torchaudio_features(audio: torch.Tensor, mfcc: MFCC) -> torch.Tensor:
    """MFCCs of excerpts, (N, C, n_mfcc, T), of the type and device of `audio`.

    Args:
        audio: (N, C, samples) at 44.1 kHz.
        mfcc: the settings.

    Raises:
        ImportError: if torchaudio is missing.
    """
    transform = import_extra(
        "torchaudio.transforms", 'backend="torchaudio" computes the features with torchaudio'
    ).MFCC(
        sample_rate=RATE,
        n_mfcc=mfcc.n_mfcc,
        dct_type=2,
        norm="ortho",
        log_mels=False,
        melkwargs={
            "n_fft": mfcc.n_fft,
            "hop_length": mfcc.hop_length,
            "n_mels": 128,
            "f_min": 0.0,
            "power": 2.0,
            "center": True,
            "pad_mode": "constant",
            "mel_scale": "slaney",
            "norm": "slaney",
        },
    )
    transform = transform.to(audio.device, audio.dtype)
    # A channel is a sample of its own: the 80 dB below the loudest count for each alone, as in
    # librosa's of one channel.
    alone = transform(audio.flatten(0, 1).unsqueeze(1))
    return alone.reshape(*audio.shape[:2], *alone.shape[-2:])
