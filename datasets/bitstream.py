"""The bitstream task of the BPPSA paper (Wang, Bai, Pekhimenko, arXiv:1907.10134, section 4.1).

A sample is a stream of T independent bits; its class decides how likely a one is. To name the class
a recurrent network has to count over the whole stream, for any T one asks for. The streams are
drawn once, kept in a cache file at one bit a bit, and unpacked batch by batch.

Dimension letters: N samples of a split, B batch, T steps.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .bitstream_cache import Split, class_probabilities, load
from .checks import check_bool, check_float, check_folder, check_int
from .splits import SPLITS, Batch, SplitDataModule


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


class BitstreamDataModule(SplitDataModule):
    """Streams of T bits, x ~ Bernoulli(first_probability + probability_step * class).

    Batches are ``(x, y)``: x (B, T, 1) float32 of zeros and ones, y (B,) int64. Each class gets
    ``num_samples // num_classes`` streams of a split, or one more. Train, validation and test
    streams come from independent random streams of the seed. The same settings give the same bits
    on every machine. The order of the training samples is a function of the epoch and of torch's
    seed (``seed_everything``) when training begins; a run that is resumed within an epoch keeps it.

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
        # Plain Python values, under the arguments' names: save_hyperparameters reads them there,
        # and a checkpoint that holds a Path or a NumPy number does not load with weights_only.
        data_dir = check_folder("data_dir", data_dir)
        steps = check_int("steps", steps, 1)
        batch_size = check_int("batch_size", batch_size, 1)
        num_samples = check_int("num_samples", num_samples, 1)
        seed = check_int("seed", seed, 0, 2**64 - 1)
        num_val_samples = check_int("num_val_samples", num_val_samples, 1)
        num_test_samples = check_int("num_test_samples", num_test_samples, 1)
        num_classes = check_int("num_classes", num_classes, 2)
        first_probability = check_float("first_probability", first_probability)
        probability_step = check_float("probability_step", probability_step)
        num_workers = check_int("num_workers", num_workers, 0)
        drop_last = check_bool("drop_last", drop_last)
        class_probabilities(first_probability, probability_step, num_classes)
        if drop_last and batch_size > num_samples:
            raise ValueError(
                f"batch_size is {batch_size} with num_samples={num_samples} and drop_last=True, "
                "which leaves no training batch; pass drop_last=False or a smaller batch_size"
            )
        super().__init__(batch_size, num_workers, drop_last)
        self.save_hyperparameters()

        self.data_dir = data_dir
        sizes = zip(SPLITS, (num_samples, num_val_samples, num_test_samples), strict=True)
        self._splits = {
            name: Split(name, seed, size, steps, num_classes, first_probability, probability_step)
            for name, size in sizes
        }

    def prepare_data(self) -> None:
        """Writes the cache files that are missing or damaged.

        Raises:
            OSError: if ``data_dir`` cannot be written.
        """
        self._load(SPLITS)

    def _load(self, names: Iterable[str]) -> dict[str, Dataset[Batch]]:
        datasets: dict[str, Dataset[Batch]] = {}
        for name in names:
            split = self._splits[name]
            # A warning names who called prepare_data or setup.
            packed, labels = load(split, Path(self.data_dir), stacklevel=4)
            datasets[name] = BitstreamDataset(packed, labels, split.steps)
        return datasets
