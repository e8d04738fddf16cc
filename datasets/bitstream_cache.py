"""The cache files of the bitstream task: drawn once, one bit a bit, whole or not at all.

A file is one line of settings (JSON), the labels, the packed bits, and a SHA-256 of all of these.

Dimension letters: N samples of a split, T steps.
"""

import contextlib
import hashlib
import itertools
import json
import os
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

PackedBits = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

_FORMAT = "bppsa-bitstream"
_FORMAT_VERSION = 1
SPLITS = ("train", "val", "test")
_BLOCK_DRAWS = 1 << 16  # 64-bit draws at a time: they stay in the processor's cache
_DIGEST_BYTES = hashlib.sha256().digest_size
_TEMPORARY_SUFFIX = ".tmp"
_STALE_SECONDS = 24 * 60 * 60
_ROUNDING = 1e-9  # what adding steps of a probability may be off by


@dataclass(frozen=True)
class Split:
    """All that decides the bits of one split; the fields and the format version name its cache."""

    name: str
    seed: int
    num_samples: int
    steps: int
    num_classes: int
    first_probability: float
    probability_step: float

    @property
    def header(self) -> bytes:
        """First line of the cache file: every setting, as JSON."""
        settings = {"format": _FORMAT, "version": _FORMAT_VERSION, **asdict(self)}
        return json.dumps(settings, sort_keys=True).encode() + b"\n"

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256(self.header).hexdigest()[:10]
        return (
            f"bitstream-{self.name}-n{self.num_samples}-t{self.steps}-c{self.num_classes}"
            f"-p{self.first_probability:g}-step{self.probability_step:g}-seed{self.seed}"
            f"-{digest}.bits"
        )

    @property
    def row_bytes(self) -> int:
        return (self.steps + 7) // 8

    @property
    def file_bytes(self) -> int:
        row = np.dtype("<i8").itemsize + self.row_bytes
        return len(self.header) + self.num_samples * row + _DIGEST_BYTES

    def draw(self) -> Iterator[bytes]:
        """Yields the labels, (N,) little-endian int64, then the packed bits, (N, ceil(T / 8)).

        Everything comes from the raw output of the bit generator: NumPy keeps that the same in
        every version and on every machine, and promises it for no distribution or shuffle.
        """
        seeds = np.random.SeedSequence(self.seed).spawn(len(SPLITS))
        raw = np.random.PCG64(seeds[SPLITS.index(self.name)]).random_raw

        order = np.argsort(raw(self.num_samples), kind="stable")
        labels = order % self.num_classes
        yield labels.astype("<i8").tobytes()

        # A draw of 63 bits is below p * 2**63 with probability p, also where p is exactly 1.
        probabilities = class_probabilities(
            self.first_probability, self.probability_step, self.num_classes
        )
        thresholds = np.array([round(p * 2**63) for p in probabilities], dtype=np.uint64)
        rows = max(1, _BLOCK_DRAWS // self.steps)
        for start in range(0, self.num_samples, rows):
            threshold = thresholds[labels[start : start + rows], None]
            draws = raw(threshold.size * self.steps).reshape(-1, self.steps)
            yield np.packbits((draws >> 1) < threshold, axis=1).tobytes()


def load(split: Split, folder: Path) -> tuple[PackedBits, Labels]:
    """Reads the split's cache file, after writing it where it is missing or unusable.

    Returns:
        The bits, (N, ceil(T / 8)) uint8, eight a byte with the first step in the highest bit, and
        the labels, (N,) int64.

    Raises:
        OSError: if the folder cannot be written.
    """
    path = folder / split.file_name
    try:
        return _read(split, path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        warnings.warn(
            f"the cache file {path} cannot be used and is made again: {error}", stacklevel=3
        )
    _write(split, path)
    return _read(split, path)


def _read(split: Split, path: Path) -> tuple[PackedBits, Labels]:
    """Reads and verifies a cache file; raises ValueError if it is not this split's, whole."""
    found = path.stat().st_size
    if found != split.file_bytes:
        raise ValueError(f"it holds {found} bytes; wanted {split.file_bytes}")
    data = path.read_bytes()
    if not data.startswith(split.header):
        raise ValueError("it does not start with these settings, so something else wrote it")
    content = memoryview(data)[:-_DIGEST_BYTES]
    if hashlib.sha256(content).digest() != data[-_DIGEST_BYTES:]:
        raise ValueError("its content does not match the checksum at its end")

    start = len(split.header)
    labels = np.frombuffer(data, "<i8", split.num_samples, start).astype(np.int64)
    packed = np.frombuffer(content[start + labels.nbytes :], np.uint8)
    return packed.reshape(-1, split.row_bytes), labels


def _write(split: Split, path: Path) -> None:
    """Draws a split into its cache file: header, labels, packed bits, SHA-256 of all of these.

    The file grows under a name of its own and takes the final one when it is whole and on disk, so
    neither a process that dies nor a second one that writes the same split leaves half a file.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_TEMPORARY_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path.parent)
        with open(temporary, "xb") as file:
            digest = hashlib.sha256()
            for part in itertools.chain([split.header], split.draw()):
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(
            error.errno,
            f"data_dir is {str(path.parent)!r}, and the {split.file_bytes} bytes of {path.name} "
            f"cannot be written there ({error.strerror or error}); make room there, give write "
            "permission, or pass the data_dir of a folder that can be written",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _remove_stale(folder: Path) -> None:
    """Removes what killed processes left behind, once no process can still be writing it."""
    for temporary in folder.glob(f".bitstream-*{_TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - temporary.stat().st_mtime > _STALE_SECONDS:
                temporary.unlink()


def class_probabilities(first: float, step: float, num_classes: int) -> list[float]:
    """Returns the probability of a one in each class; raises ValueError unless all are in 0…1."""
    values = [first + step * label for label in range(num_classes)]
    for label, value in enumerate(values):
        if not -_ROUNDING <= value <= 1 + _ROUNDING:
            raise ValueError(
                f"first_probability={first} and probability_step={step} give class {label} of "
                f"num_classes={num_classes} the probability {value:g}; wanted one from 0 to 1 "
                "for every class"
            )
    return [min(max(value, 0.0), 1.0) for value in values]
