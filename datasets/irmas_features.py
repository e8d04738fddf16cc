"""The features of the BPPSA paper (arXiv:1907.10134, section 4.2): MFCCs of both channels.

Coefficient 0, the loudness, is dropped; each other coefficient is scaled to zero mean and unit
variance over the frames of its excerpt; the channels lie side by side. The rest is librosa's
default: power spectrum of a periodic Hann window, frames centred, 128 Slaney mel bands up to 22,050
Hz, decibels no more than 80 below the loudest of the channel, orthonormal DCT-II.

The paper's program hands librosa the samples as integers and in float64, this one as float32 from
-1 to 1, as `librosa.load` reads them. The factor falls into coefficient 0, unless the loudest band
stays below -20 dB, where librosa's floor of -100 dB cuts in. The precision of float32 costs less
than 1e-6 on noise-like audio, up to 5e-5 on a pure tone.

Dimension letters: T frames, F features, C channels.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .extras import import_extra
from .irmas_audio import FEWEST_SAMPLES, RATE, Audio

Features = npt.NDArray[np.float32]

CHANNELS = 2
# Decibels: a coefficient that varies less is constant (silence), up to rounding.
_CONSTANT = 1e-4


@dataclass(frozen=True)
class MFCC:
    """Settings of the MFCCs.

    Attributes:
        hop_length: samples from one frame to the next.
        n_fft: samples of a frame.
        n_mfcc: coefficients, the dropped one included.
    """

    hop_length: int
    n_fft: int
    n_mfcc: int

    @property
    def frames(self) -> int:
        """T."""
        return 1 + FEWEST_SAMPLES // self.hop_length

    @property
    def features(self) -> int:
        """F."""
        return CHANNELS * (self.n_mfcc - 1)


SETTINGS = {"S": MFCC(512, 4096, 20), "M": MFCC(256, 2048, 13), "L": MFCC(128, 1024, 7)}


def librosa_features(audio: Audio, mfcc: MFCC) -> Features:
    """Features of an excerpt, (T, F) float32.

    Args:
        audio: both channels, (C, samples) float32 at 44.1 kHz.
        mfcc: the settings.

    Raises:
        ImportError: if librosa is missing.
    """
    feature = import_extra("librosa", "IRMASDataModule computes its features with librosa").feature
    sizes = {"n_mfcc": mfcc.n_mfcc, "n_fft": mfcc.n_fft, "hop_length": mfcc.hop_length}
    # One channel at a time: the 80 dB count from the loudest of all that is handed over.
    coefficients = [feature.mfcc(y=channel, sr=RATE, **sizes) for channel in audio]
    return arrange(np.stack(coefficients))


def arrange(coefficients: npt.NDArray[Any]) -> Features:
    """Drops coefficient 0, scales the others over the frames, puts the channels side by side.

    Args:
        coefficients: MFCCs of an excerpt, (C, n_mfcc, T).

    Returns:
        (T, F) float32; a coefficient that is constant gives zeros.
    """
    kept = coefficients[:, 1:].astype(np.float64)
    centred = kept - kept.mean(axis=-1, keepdims=True)
    deviation = kept.std(axis=-1, keepdims=True)
    constant = deviation < _CONSTANT
    scaled = np.where(constant, 0.0, centred / np.where(constant, 1.0, deviation))
    return scaled.reshape(-1, kept.shape[-1]).T.astype(np.float32)
