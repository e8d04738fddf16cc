"""IRMASDataModule over features that cost nothing, and all that its cache holds."""

import multiprocessing
import os

import numpy as np
import pytest
import torch

from bppsa_lightning.datasets import IRMASDataModule

SPLITS = ("train", "val", "test")
RECIPES = {"S": (512, 4096, 20), "M": (256, 2048, 13), "L": (128, 1024, 7)}
SHAPES = {"S": (259, 38), "M": (517, 24), "L": (1034, 12)}
HALF = {"val_split": 0.25, "test_split": 0.25}
fork = multiprocessing.get_context("fork") if hasattr(os, "fork") else None
needs_fork = pytest.mark.skipif(fork is None, reason="needs fork")


def files(folder):
    """Name and content of all there is of the cache, temporary files and locks too."""
    return {path.name: path.read_bytes() for path in folder.glob("*irmas-*")}


def whole(data):
    """All batches of all splits: x (N, T, F), y (N,), names of the files."""
    sets = [data._datasets[name] for name in SPLITS]
    x, y = zip(*[part.__getitems__(list(range(len(part)))) for part in sets])
    return torch.cat(x), torch.cat(y), [e.name for part in sets for e in part.excerpts]


# The cache, over features that cost nothing
def write_fake(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"RIFF {seed}".encode())


def fake_extract(paths, mfcc, backend, device, workers):
    for path in paths:
        content = path.read_bytes()
        if content == b"bad":
            yield "it is bad"
        else:
            seed = int(content.split()[1])
            yield np.full((mfcc.frames, mfcc.features), seed, dtype=np.float32)


def make(folder, **settings):
    data = IRMASDataModule(folder, **settings)
    data.prepare_data()
    data.setup()
    return data
