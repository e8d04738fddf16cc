"""The cache file of IRMAS features: computed once, whole or not at all, safe to read.

Its name and settings line hold a digest of the settings and of every WAV file's name, size, time of
change and mode: reading all contents to learn that nothing has changed would take as long as the
disk needs for 3.5 GB. The content is the features of all files, zeros where a file is bad, and then
(JSON) why each bad one is; `cache_files` says what is around them. Where the system refused a file,
that may pass, so those alone are looked at again.

Dimension letters: N files, T frames, F features.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from . import cache_files
from .irmas_audio import BadAudio, may_pass, read_excerpt
from .irmas_extract import extract
from .irmas_features import MFCC, SETTINGS, Features
from .irmas_layout import Excerpt
from .locks import locked

_FORMAT = "bppsa-irmas"
_FORMAT_VERSION = 1
_NUMBER = np.dtype("<f4")


@dataclass(frozen=True)
class Job:
    """All that decides the features of a corpus, and how they are computed.

    Attributes:
        settings: ``"S"``, ``"M"`` or ``"L"``.
        backend: ``"librosa"`` or ``"torchaudio"``.
        excerpts: the WAV files.
        device: where torchaudio computes; does not tell caches apart.
        workers: the most processes; does not tell caches apart.
    """

    settings: str
    backend: str
    excerpts: Sequence[Excerpt]
    device: str = "cpu"
    workers: int | None = None

    @property
    def mfcc(self) -> MFCC:
        return SETTINGS[self.settings]

    @property
    def header(self) -> bytes:
        """First line of the cache file."""
        files = [(e.name, e.size, e.modified, e.mode) for e in self.excerpts]
        listed = hashlib.sha256(json.dumps(files).encode()).hexdigest()
        settings: dict[str, Any] = {"backend": self.backend, **asdict(self.mfcc)}
        return cache_files.header(
            format=_FORMAT, version=_FORMAT_VERSION, count=len(files), files=listed, **settings
        )

    @property
    def file_name(self) -> str:
        return f"irmas-{self.settings}-{self.backend}-{cache_files.short_digest(self.header)}.mfcc"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, T, F)."""
        return len(self.excerpts), self.mfcc.frames, self.mfcc.features


def load(job: Job, folder: Path, stacklevel: int = 2) -> tuple[Features, dict[int, str]]:
    """Reads the job's cache file, after computing it where it is missing or unusable.

    Of several processes that want the same file one computes it while the others wait.

    Args:
        job: what decides the features.
        folder: where the file is, or will be.
        stacklevel: of the warning of a file that cannot be used; 2 names the caller.

    Returns:
        The features, (N, T, F) float32, read-only, and why a file is bad, by its index.

    Raises:
        OSError: if the folder cannot be written.
        ImportError: if a library is missing that reads or computes.
    """
    path = folder / job.file_name

    def read() -> memoryview:
        content = cache_files.read(path, job.header)
        _check_still_refused(job, content)
        return content

    content = cache_files.read_if_whole(read, path, stacklevel)
    if content is None:
        content = _made(job, path, read)
    return _parts(job, content)


def _check_still_refused(job: Job, content: memoryview) -> None:
    """Raises ValueError if a file that the system refused when the cache was made is no longer."""
    _, bad = _parts(job, content)
    for index, reason in bad.items():
        excerpt = job.excerpts[index]
        if may_pass(reason) and not _is_refused(excerpt.path):
            raise ValueError(f"{excerpt.printable} could not be read then, and can be now")


def _is_refused(path: Path) -> bool:
    try:
        read_excerpt(path)
    except BadAudio as error:
        return may_pass(str(error))
    return False


def _made(job: Job, path: Path, read: Callable[[], memoryview]) -> memoryview:
    """Computes the file, unless another process has done so while this one waited for the lock."""
    size = int(np.prod(job.shape)) * _NUMBER.itemsize
    with locked(path):
        try:
            return read()
        except (OSError, ValueError):
            cache_files.write(path, job.header, _content(job), size, "cache_dir")
            return cache_files.read(path, job.header)


def _content(job: Job) -> Iterator[bytes]:
    bad = {}
    nothing = bytes(job.mfcc.frames * job.mfcc.features * _NUMBER.itemsize)
    paths = [excerpt.path for excerpt in job.excerpts]
    found = extract(paths, job.mfcc, job.backend, job.device, job.workers)
    title = f"IRMAS features {job.settings}"
    for index, item in enumerate(tqdm(found, title, len(paths), unit="file", disable=None)):
        if isinstance(item, str):
            bad[index] = item
            yield nothing
        else:
            yield item.astype(_NUMBER).tobytes()
    yield json.dumps(bad).encode()


def _parts(job: Job, content: memoryview) -> tuple[Features, dict[int, str]]:
    features = np.frombuffer(content, _NUMBER, int(np.prod(job.shape))).reshape(job.shape)
    bad = json.loads(bytes(content[features.nbytes :]))
    return features, {int(index): reason for index, reason in bad.items()}
