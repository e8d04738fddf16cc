"""IRMAS: which of eleven instruments plays in three seconds of music?

Bosch, Janer, Fuhrmann, Herrera, ISMIR 2012; 6,705 excerpts, DOI 10.5281/zenodo.1290750. The BPPSA
paper (arXiv:1907.10134, section 4.2) trains a GRU on their MFCCs.

Dimension letters: B batch, T frames, F features.
"""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from . import irmas_cache
from .checks import check_bool, check_choice, check_device, check_folder, check_int, check_share
from .irmas_archive import download_irmas
from .irmas_features import SETTINGS, Features
from .irmas_layout import ARCHIVE_FOLDER, INSTRUMENTS, Excerpt, find_excerpts
from .irmas_split import split_by_recording
from .splits import SPLITS, Batch, SplitDataModule


class IRMASDataset(Dataset[Batch]):
    """Features of excerpts and their labels; ``__getitems__`` returns the finished batch.

    Args:
        features: of a whole corpus, (files, T, F) float32.
        labels: of the whole corpus, (files,) int64.
        indices: the excerpts that belong to this dataset.
        excerpts: the files of the whole corpus.
    """

    def __init__(
        self,
        features: Features,
        labels: np.ndarray,
        indices: list[int],
        excerpts: list[Excerpt],
    ) -> None:
        self.features = features
        self.labels = labels
        self.indices = np.array(indices, dtype=np.int64)
        self.excerpts = [excerpts[index] for index in indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Batch:
        """Returns the features, (T, F) float32, and their label, () int64."""
        x, y = self.__getitems__([index])
        return x[0], y[0]

    def __getitems__(self, indices: list[int]) -> Batch:
        """Returns the features, (B, T, F) float32, and their labels, (B,) int64."""
        chosen = self.indices[indices]
        return torch.from_numpy(self.features[chosen]), torch.from_numpy(self.labels[chosen])


class IRMASDataModule(SplitDataModule):
    """MFCCs of IRMAS, or of a corpus in its layout, with the instrument as label.

    Batches are ``(x, y)``: x (B, T, F) float32, y (B,) int64, an index of ``instruments``.

    ========  ===  ======  =====  ====  ==
    features  hop  window  MFCCs  T     F
    ========  ===  ======  =====  ====  ==
    S         512  4096    20     259   38
    M         256  2048    13     517   24
    L         128  1024    7      1034  12
    ========  ===  ======  =====  ====  ==

    F is twice the MFCCs less one: coefficient 0 of each channel is dropped, every other one has
    zero mean and unit variance over the frames of its excerpt. ``prepare_data`` computes the
    features of all files once, with a progress bar, into one file in ``cache_dir``, whole or not at
    all. It is made again when it is damaged, or when the name, size, time of change or mode of any
    WAV file is another.

    A file is read if it is a whole WAV file of at least three seconds (the first three count), mono
    (taken for both channels) or stereo, at 8 to 192 kHz (brought to 44.1 kHz). Each other one is
    named with its reason.

    Recordings, not excerpts, are dealt to train, validation and test, each instrument in the shares
    asked for: excerpts of one recording (the number before the last ``__`` in their names) are
    in one split. The order of the training samples is a function of the epoch and of torch's seed
    (``seed_everything``) when training begins; a run that is resumed within an epoch keeps it.

    Source: arXiv:1907.10134, section 4.2 (which has no validation or test split).

    Args:
        data_dir: Holds ``<instrument>/*.wav``, or ``IRMAS-TrainingData`` with these, or will after
            a download. A leading ``~`` is the home folder.
        features: ``"S"``, ``"M"`` or ``"L"``, as in the table.
        batch_size: B, the number of excerpts in a batch; the last one of an epoch may be smaller.
        seed: Seed of the splits, from 0 to 2**64 - 1.
        val_split: Share of the excerpts that validate, at least 0 and below 1.
        test_split: Share of the excerpts that test; ``predict`` reads them too.
        download: Whether ``prepare_data`` fetches IRMAS (about 3 GB) where ``data_dir`` has no WAV
            file of an instrument. An interrupted download is resumed.
        on_error: What to do with files that cannot be used: ``"skip"`` (with a warning that names
            them) or ``"raise"``.
        backend: ``"librosa"``, in parallel processes, or ``"torchaudio"``, in batches on
            ``device``. The two differ by less than 1e-3 (about 1e-5 on noise, 7e-4 on a pure tone).
        device: Where torchaudio computes the features, such as ``"cuda"``.
        cache_dir: Folder of the cache file; None for ``data_dir``.
        prepare_workers: The most processes that compute features, each of 0.5 GB (with torchaudio:
            threads that read files); None for one a core, and one for 200 files at the least.
        num_workers: Worker processes of each loader. All is in memory, so 0 is the fastest.
        drop_last: Whether training leaves out a last batch smaller than ``batch_size``.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range.
    """

    instruments = INSTRUMENTS
    num_classes = len(INSTRUMENTS)

    def __init__(
        self,
        data_dir: str | os.PathLike[str] = "data/irmas",
        features: Literal["S", "M", "L"] = "S",
        batch_size: int = 16,
        seed: int = 0,
        val_split: float = 0.1,
        test_split: float = 0.1,
        download: bool = False,
        on_error: Literal["skip", "raise"] = "skip",
        backend: Literal["librosa", "torchaudio"] = "librosa",
        device: str = "cpu",
        cache_dir: str | os.PathLike[str] | None = None,
        prepare_workers: int | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
    ) -> None:
        # Plain Python values, under the arguments' names, for save_hyperparameters.
        data_dir = check_folder("data_dir", data_dir)
        features = check_choice("features", features, tuple(SETTINGS))
        batch_size = check_int("batch_size", batch_size, 1)
        seed = check_int("seed", seed, 0, 2**64 - 1)
        val_split = check_share("val_split", val_split)
        test_split = check_share("test_split", test_split)
        if val_split + test_split >= 1:
            raise ValueError(
                f"val_split={val_split} and test_split={test_split} leave nothing to train; wanted "
                "a sum below 1"
            )
        download = check_bool("download", download)
        on_error = check_choice("on_error", on_error, ("skip", "raise"))
        backend = check_choice("backend", backend, ("librosa", "torchaudio"))
        device = check_device("device", device)
        cache_dir = None if cache_dir is None else check_folder("cache_dir", cache_dir)
        if prepare_workers is not None:
            prepare_workers = check_int("prepare_workers", prepare_workers, 1)
        num_workers = check_int("num_workers", num_workers, 0)
        drop_last = check_bool("drop_last", drop_last)
        super().__init__(batch_size, num_workers, drop_last)
        self.save_hyperparameters()

        self.data_dir = data_dir
        self.download = download
        self._shares = {
            "train": 1 - val_split - test_split,
            "val": val_split,
            "test": test_split,
        }

    @property
    def num_frames(self) -> int:
        """T."""
        return SETTINGS[self.hparams["features"]].frames

    @property
    def num_features(self) -> int:
        """F."""
        return SETTINGS[self.hparams["features"]].features

    def prepare_data(self) -> None:
        """Downloads IRMAS, if asked to and not there, and computes the features that are missing.

        Raises:
            ImportError: if a library is missing; the message names it.
            OSError: if the download fails, or a folder cannot be written.
            FileExistsError: if something else is where IRMAS would be downloaded to.
            FileNotFoundError: if there are no WAV files.
            RuntimeError: if torch cannot compute on ``device``.
            ValueError: if files cannot be used and ``on_error`` is ``"raise"``, or too few can.
        """
        if self.download and not find_excerpts(self.data_dir):
            download_irmas(Path(self.data_dir))
        self._load(SPLITS)

    def _load(self, names: Iterable[str]) -> dict[str, Dataset[Batch]]:
        excerpts = self._excerpts()
        job = irmas_cache.Job(
            self.hparams["features"],
            self.hparams["backend"],
            excerpts,
            self.hparams["device"],
            self.hparams["prepare_workers"],
        )
        folder = Path(self.hparams["cache_dir"] or self.data_dir)
        # Warnings name who called prepare_data or setup.
        features, bad = irmas_cache.load(job, folder, stacklevel=4)
        self._report(excerpts, bad, stacklevel=4)
        splits = self._split(excerpts, [i for i in range(len(excerpts)) if i not in bad])
        labels = np.array([excerpt.label for excerpt in excerpts], dtype=np.int64)
        return {
            name: IRMASDataset(features, labels, indices, excerpts)
            for name, indices in splits.items()
        }

    def _excerpts(self) -> list[Excerpt]:
        excerpts = find_excerpts(self.data_dir)
        if not excerpts:
            advice = "pass the folder that holds them, or download=True"
            raise FileNotFoundError(
                f"data_dir is {self.data_dir!r}, where no WAV file of an instrument was found; "
                f"wanted <instrument>/*.wav, there or in {ARCHIVE_FOLDER}, of the instruments "
                f"{' '.join(INSTRUMENTS)}; "
                + ("call prepare_data to download them" if self.download else advice)
            )
        return excerpts

    def _report(self, excerpts: list[Excerpt], bad: dict[int, str], stacklevel: int) -> None:
        if not bad:
            return
        count = f"{len(bad)} of {len(excerpts)} files in data_dir={self.data_dir!r} cannot be used"
        lines = [f"  {excerpts[index].printable}: {reason}" for index, reason in bad.items()]
        if self.hparams["on_error"] == "raise":
            advice = 'mend or remove them, or pass on_error="skip"'
            raise ValueError("\n".join([f"{count}; {advice}:", *lines]))
        warnings.warn("\n".join([f"{count} and are skipped:", *lines]), stacklevel=stacklevel)

    def _strata(self, excerpts: list[Excerpt]) -> list[int]:
        """What each split has its share of: here the instruments."""
        return [excerpt.label for excerpt in excerpts]

    def _split(self, excerpts: list[Excerpt], usable: list[int]) -> dict[str, list[int]]:
        splits = split_by_recording(
            [excerpts[index].recording for index in usable],
            self._strata([excerpts[index] for index in usable]),
            self._shares,
            self.hparams["seed"],
        )
        for name, share in self._shares.items():
            if share and not splits[name]:
                recordings = len({excerpts[index].recording for index in usable})
                raise ValueError(
                    f"data_dir is {self.data_dir!r}, whose {len(usable)} usable files of "
                    f"{recordings} recordings are too few: the {name} split is empty; add "
                    "recordings, or choose another val_split and test_split"
                )
        return {name: [usable[index] for index in indices] for name, indices in splits.items()}
