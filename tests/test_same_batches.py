"""Loaders of which every process draws the same batches."""

import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader

from bppsa_lightning._same_batches import LoaderRandomness, SameBatches


def loader(**options):
    return DataLoader(torch.arange(6.0), 2, multiprocessing_context="fork", **options)


def read(loader):
    """As a Trainer reads one in a run, at the end of which it stops the workers."""
    combined = CombinedLoader(SameBatches(loader, LoaderRandomness()))
    batches = [batch.tolist() for _ in range(2) for batch, *_ in combined]
    combined.reset()
    return batches


def test_workers_are_started_again_for_another_run():
    lasting = loader(num_workers=1, persistent_workers=True)
    assert read(lasting) == read(lasting) == read(DataLoader(torch.arange(6.0), 2))


def test_what_is_set_is_the_loaders():
    own = DataLoader(torch.arange(6.0), 2)
    batches = SameBatches(own, LoaderRandomness())
    batches.timeout = 3
    assert own.timeout == batches.timeout == 3
    with pytest.raises(ValueError, match="batch_size"):  # which a loader lets nobody change
        batches.batch_size = 3
