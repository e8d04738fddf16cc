"""The cache files of the bitstream task: drawn once, one bit a bit, whole or not at all.

A file's content is the labels, then the packed bits; `cache_files` says what is around them.

Dimension letters: N samples of a split, T steps.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import cache_files
from .cache_files import read_if_whole
from .splits import SPLITS

PackedBits = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

_FORMAT = "bppsa-bitstream"
_FORMAT_VERSION = 1
_BLOCK_DRAWS = 1 << 16  # 64-bit draws at a time: they stay in the processor's cache
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
        return cache_files.header(format=_FORMAT, version=_FORMAT_VERSION, **asdict(self))

    @property
    def file_name(self) -> str:
        digest = cache_files.short_digest(self.header)
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
        return len(self.header) + self.num_samples * row + cache_files.DIGEST_BYTES

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


def load(split: Split, folder: Path, stacklevel: int = 2) -> tuple[PackedBits, Labels]:
    """Reads the split's cache file, after writing it where it is missing or unusable.

    Args:
        split: what decides the bits.
        folder: where its file is, or will be.
        stacklevel: of the warning of a file that cannot be used; 2 names the caller.

    Returns:
        The bits, (N, ceil(T / 8)) uint8, eight a byte with the first step in the highest bit, and
        the labels, (N,) int64.

    Raises:
        OSError: if the folder cannot be written.
    """
    path = folder / split.file_name
    content = read_if_whole(lambda: _read(split, path), path, stacklevel)
    if content is None:
        _write(split, path)
        content = _read(split, path)
    labels = np.frombuffer(content, "<i8", split.num_samples).astype(np.int64)
    packed = np.frombuffer(content[labels.nbytes :], np.uint8)
    return packed.reshape(-1, split.row_bytes), labels


def _read(split: Split, path: Path) -> memoryview:
    return cache_files.read(path, split.header, split.file_bytes)


def _write(split: Split, path: Path) -> None:
    """Draws a split into its cache file: labels, then packed bits."""
    cache_files.write(path, split.header, split.draw(), split.file_bytes)


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
