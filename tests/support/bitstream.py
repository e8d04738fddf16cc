"""A small BitstreamDataModule, and all that its splits and its cache hold."""

import hashlib
import multiprocessing
import os

import numpy as np
import pytest
import torch

from bppsa_lightning.datasets import BitstreamDataModule

SPLITS = ("train", "val", "test")
SMALL = {"steps": 50, "num_samples": 60, "num_val_samples": 40, "num_test_samples": 20}
# SHA-256 of the bits and labels of SMALL, split after split. Another value means that cached data
# and published results no longer belong to the code: raise the format version if it is on purpose.
SMALL_SHA256 = "d12be63878f6ba977f93678bd37d7c02adac063c6dc44d7a5e2aee5f34e70d23"
fork = multiprocessing.get_context("fork") if hasattr(os, "fork") else None
needs_fork = pytest.mark.skipif(fork is None, reason="needs fork")


def make(data_dir, **settings):
    """A datamodule with every split loaded."""
    data = BitstreamDataModule(data_dir, **{**SMALL, **settings})
    data.prepare_data()
    data.setup()
    return data


def loader(data, split):
    return getattr(data, f"{split}_dataloader")()


def whole(data, split):
    """All samples of a split in the order of its file: bits (N, T) bool, labels (N,) int64."""
    x, y = zip(*loader(data, split).dataset, strict=True)
    return torch.stack(x).squeeze(-1).bool().numpy(), torch.stack(y).numpy()


def digest(data):
    sha = hashlib.sha256()
    for split in SPLITS:
        for array in whole(data, split):
            sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def files(folder):
    """Name and content of all there is in a folder, temporary files too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def cache_file(folder, split):
    (path,) = folder.glob(f"bitstream-{split}-*.bits")
    return path
