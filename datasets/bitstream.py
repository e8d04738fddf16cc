"""The bitstream task of the BPPSA paper (Wang, Bai, Pekhimenko, arXiv:1907.10134, section 4.1).

A sample is a stream of T independent bits; its class decides how likely a one is. To name the class
a recurrent network has to count over the whole stream, for any T one asks for. The streams are
drawn once, kept in a cache file at one bit a bit, and unpacked batch by batch.

Dimension letters: N samples of a split, B batch, T steps.
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
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

_FORMAT = "bppsa-bitstream"
_FORMAT_VERSION = 1
_SPLITS = ("train", "val", "test")
_SPLITS_OF_STAGE = {
    None: _SPLITS,
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("test",),
}
_BLOCK_DRAWS = 1 << 16  # 64-bit draws at a time: they stay in the processor's cache
_DIGEST_BYTES = hashlib.sha256().digest_size
_TEMPORARY_SUFFIX = ".tmp"
_STALE_SECONDS = 24 * 60 * 60
_ROUNDING = 1e-9  # what adding steps of a probability may be off by


@dataclass(frozen=True)
class _Split:
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
        seeds = np.random.SeedSequence(self.seed).spawn(len(_SPLITS))
        raw = np.random.PCG64(seeds[_SPLITS.index(self.name)]).random_raw

        order = np.argsort(raw(self.num_samples), kind="stable")
        labels = order % self.num_classes
        yield labels.astype("<i8").tobytes()

        # A draw of 63 bits is below p * 2**63 with probability p, also where p is exactly 1.
        probabilities = _probabilities(
            self.first_probability, self.probability_step, self.num_classes
        )
        thresholds = np.array([round(p * 2**63) for p in probabilities], dtype=np.uint64)
        rows = max(1, _BLOCK_DRAWS // self.steps)
        for start in range(0, self.num_samples, rows):
            threshold = thresholds[labels[start : start + rows], None]
            draws = raw(threshold.size * self.steps).reshape(-1, self.steps)
            yield np.packbits((draws >> 1) < threshold, axis=1).tobytes()


class BitstreamDataset(Dataset[tuple[Tensor, Tensor]]):
    """Packed bit streams and their labels, unpacked when asked for.

    ``__getitems__`` returns the finished batch and not a list of samples, so a ``DataLoader`` over
    this dataset needs a ``collate_fn`` that hands its argument on.

    Args:
        packed: bits of the streams, eight a byte, first step in the highest bit:
            (N, ceil(T / 8)) uint8.
        labels: class of each stream, (N,) int64.
        steps: T.
    """

    def __init__(
        self, packed: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], steps: int
    ) -> None:
        self.packed = packed
        self.labels = labels
        self.steps = steps

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns the stream, (T, 1) float32, and its label, () int64."""
        x, y = self.__getitems__([index])
        return x[0], y[0]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Returns the streams, (B, T, 1) float32, and their labels, (B,) int64."""
        bits = np.unpackbits(self.packed[indices], axis=1, count=self.steps)
        # NumPy converts on this thread; torch would wake its pool, which costs milliseconds where
        # the cores are busy.
        x = torch.from_numpy(bits.astype(np.float32)).unsqueeze(-1)
        return x, torch.from_numpy(self.labels[indices])


class BitstreamDataModule(LightningDataModule):
    """Streams of T bits, x ~ Bernoulli(first_probability + probability_step * class).

    Batches are ``(x, y)``: x (B, T, 1) float32 of zeros and ones, y (B,) int64. Each class gets
    ``num_samples // num_classes`` streams of a split, or one more. Train, validation and test
    streams come from independent random streams of the seed. The same settings give the same bits
    on every machine; the order of the training samples follows torch's global generator, as with
    any shuffled ``DataLoader`` (``seed_everything`` fixes it).

    ``prepare_data`` writes one cache file a split into ``data_dir``, whole or not at all. A file
    that is damaged or holds something else is named in a warning and made again.

    Source: arXiv:1907.10134, section 4.1, whose values are the defaults (the sizes of the
    validation and test splits are ours).

    Args:
        data_dir: Folder of the cache files; made when missing. A leading ``~`` is the home folder.
        steps: T, the number of bits in a stream.
        batch_size: B, the number of streams in a batch; the last batch of an epoch may be smaller.
        num_samples: Number of training streams.
        seed: Seed of all streams, from 0 to 2**64 - 1.
        num_val_samples: Number of validation streams.
        num_test_samples: Number of test streams; ``predict`` reads them too.
        num_classes: Number of classes, at least 2.
        first_probability: Probability of a one in class 0.
        probability_step: How much that probability grows from one class to the next.
        num_workers: Worker processes of each loader. Unpacking a batch costs microseconds, so 0
            is the fastest.
        drop_last: Whether training leaves out a last batch smaller than ``batch_size``.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument, or the probability of a class, is out of range.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] = "data",
        steps: int = 1000,
        batch_size: int = 16,
        num_samples: int = 32000,
        seed: int = 0,
        num_val_samples: int = 1600,
        num_test_samples: int = 1600,
        num_classes: int = 10,
        first_probability: float = 0.05,
        probability_step: float = 0.1,
        num_workers: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__()
        # Plain Python values, under the arguments' names: save_hyperparameters reads them there,
        # and a checkpoint that holds a Path or a NumPy number does not load with weights_only.
        data_dir = _check_folder("data_dir", data_dir)
        steps = _check_int("steps", steps, 1)
        batch_size = _check_int("batch_size", batch_size, 1)
        num_samples = _check_int("num_samples", num_samples, 1)
        seed = _check_int("seed", seed, 0, 2**64 - 1)
        num_val_samples = _check_int("num_val_samples", num_val_samples, 1)
        num_test_samples = _check_int("num_test_samples", num_test_samples, 1)
        num_classes = _check_int("num_classes", num_classes, 2)
        first_probability = _check_float("first_probability", first_probability)
        probability_step = _check_float("probability_step", probability_step)
        num_workers = _check_int("num_workers", num_workers, 0)
        drop_last = _check_bool("drop_last", drop_last)
        _probabilities(first_probability, probability_step, num_classes)
        if drop_last and batch_size > num_samples:
            raise ValueError(
                f"batch_size is {batch_size} with num_samples={num_samples} and drop_last=True, "
                "which leaves no training batch; pass drop_last=False or a smaller batch_size"
            )
        self.save_hyperparameters()

        self.data_dir = data_dir
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.drop_last = drop_last
        sizes = zip(_SPLITS, (num_samples, num_val_samples, num_test_samples), strict=True)
        self._splits = {
            name: _Split(name, seed, size, steps, num_classes, first_probability, probability_step)
            for name, size in sizes
        }
        self._datasets: dict[str, BitstreamDataset] = {}

    def prepare_data(self) -> None:
        """Writes the cache files that are missing or damaged.

        Raises:
            OSError: if ``data_dir`` cannot be written.
        """
        for split in self._splits.values():
            _load(split, Path(self.data_dir))

    def setup(self, stage: str | None = None) -> None:
        """Loads the splits of a stage; makes them where ``prepare_data`` did not run.

        Args:
            stage: ``"fit"``, ``"validate"``, ``"test"``, ``"predict"``, or None for all splits.

        Raises:
            ValueError: if the stage is another one.
        """
        if stage not in _SPLITS_OF_STAGE:
            wanted = [name for name in _SPLITS_OF_STAGE if name]
            raise ValueError(f"stage is {stage!r}; wanted one of {wanted}, or None for all")
        for name in _SPLITS_OF_STAGE[stage]:
            if name not in self._datasets:
                self._datasets[name] = _load(self._splits[name], Path(self.data_dir))

    def train_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Shuffled batches of the training split."""
        return self._loader("train", shuffle=True, drop_last=self.drop_last)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Batches of the validation split, in order."""
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Batches of the test split, in order."""
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Batches of the test split, in order."""
        return self._loader("test")

    def _loader(
        self, name: str, shuffle: bool = False, drop_last: bool = False
    ) -> DataLoader[tuple[Tensor, Tensor]]:
        if name not in self._datasets:
            raise RuntimeError(f"the {name} split is not loaded; call setup() first")
        return DataLoader(
            self._datasets[name],
            batch_size=self.batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            collate_fn=_hand_on,
        )


def _hand_on(batch: Any) -> Any:
    """The collate function of a dataset whose ``__getitems__`` returns whole batches."""
    return batch


def _load(split: _Split, folder: Path) -> BitstreamDataset:
    """Reads the split's cache file, after writing it where it is missing or unusable."""
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


def _read(split: _Split, path: Path) -> BitstreamDataset:
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
    return BitstreamDataset(packed.reshape(-1, split.row_bytes), labels, split.steps)


def _write(split: _Split, path: Path) -> None:
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


def _probabilities(first: float, step: float, num_classes: int) -> list[float]:
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


def _check_int(name: str, value: Any, low: int, high: int | None = None) -> int:
    wanted = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); wanted {wanted}")
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name} is {value}; wanted {wanted}")
    return int(value)


def _check_float(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); wanted a number")
    return float(value)


def _check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); wanted True or False")
    return value


def _check_folder(name: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); wanted a str or a Path")
    return os.path.expanduser(str(value))
