"""Features of many excerpts: files read and computed in parallel, handed over in order.

By librosa in processes of loky, which start afresh (no fork, so no locks or GPU state of the
caller) and do not import the caller's script again (so it needs no ``if __name__ == "__main__"``);
by torchaudio in batches on one device, with threads that read.
"""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from .extras import import_extra
from .irmas_audio import Audio, BadAudio, read_excerpt
from .irmas_features import MFCC, Features, arrange, librosa_features

# Starting a process, which imports torch and librosa, takes 0.5 GB and the time of 150 excerpts.
_FILES_A_WORKER = 200
_BATCH = 64  # of excerpts on a device: 68 MB of audio, and some ten times that of spectra


def extract(
    paths: Sequence[Path], mfcc: MFCC, backend: str, device: str, workers: int | None
) -> Iterator[Features | str]:
    """Yields the features of each file, (T, F) float32, or what is wrong with it.

    Args:
        paths: WAV files.
        mfcc: the settings.
        backend: ``"librosa"`` or ``"torchaudio"``.
        device: where torchaudio computes.
        workers: the most processes (or threads that read); None for one a core.

    Raises:
        ImportError: if a library is missing.
        RuntimeError: if the device is not there, or a worker process died.
    """
    if backend == "torchaudio":
        return _by_torchaudio(paths, mfcc, device, workers)
    return _by_librosa(paths, mfcc, workers)


def _by_librosa(paths: Sequence[Path], mfcc: MFCC, workers: int | None) -> Iterator[Features | str]:
    joblib = import_extra("joblib", "IRMASDataModule computes in parallel through joblib")
    processes = min(workers or joblib.cpu_count(), len(paths) // _FILES_A_WORKER)
    if processes <= 1:
        return (_features_or_reason(path, mfcc) for path in paths)
    with joblib.parallel_config("loky", inner_max_num_threads=1, idle_worker_timeout=10):
        run = joblib.Parallel(processes, return_as="generator")
    return run(joblib.delayed(_features_or_reason)(path, mfcc) for path in paths)


def _features_or_reason(path: Path, mfcc: MFCC) -> Features | str:
    audio = _audio_or_reason(path)
    return audio if isinstance(audio, str) else librosa_features(audio, mfcc)


def _by_torchaudio(
    paths: Sequence[Path], mfcc: MFCC, device: str, workers: int | None
) -> Iterator[Features | str]:
    _check_computes(device)
    with ThreadPoolExecutor(workers) as threads:
        for start in range(0, len(paths), _BATCH):
            found = list(threads.map(_audio_or_reason, paths[start : start + _BATCH]))
            yield from _batch_features(found, mfcc, device)


def _check_computes(device: str) -> None:
    """Raises RuntimeError if torch cannot compute there: this machine may lack what another has."""
    import torch

    try:
        torch.zeros(1, device=device).cpu()
    except (AssertionError, RuntimeError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise RuntimeError(
            f"device is {device!r}, where torch cannot compute here ({why}); wanted a device of "
            "this machine, such as 'cpu'"
        ) from error


def _audio_or_reason(path: Path) -> Audio | str:
    try:
        return read_excerpt(path)
    except BadAudio as error:
        return str(error)


def _batch_features(found: list[Audio | str], mfcc: MFCC, device: str) -> Iterator[Features | str]:
    import torch

    from .irmas_torchaudio import torchaudio_features

    def length(item: Audio | str) -> int:
        return -1 if isinstance(item, str) else item.shape[1]

    for samples, group in itertools.groupby(found, length):
        if samples < 0:
            yield from group
        else:
            audio = torch.from_numpy(np.stack(list(group))).to(device)
            yield from map(arrange, torchaudio_features(audio, mfcc).cpu().numpy())
