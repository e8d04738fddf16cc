"""Loaders of which every process draws the same batches."""

import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader

from bppsa_lightning._same_batches import (
    LoaderRandomness,
    SameBatches,
    is_same_sample,
    sample_of,
)


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


def a_batch():
    """Of many kinds; with numbers that are none."""
    images = torch.randn(9, 3, 8, 8).to(memory_format=torch.channels_last)
    images[0, 0, 0, 0] = torch.nan
    boxes = [torch.rand(i, 4) for i in range(20)]
    words = {"mask": images > 0, "words": ["one", "two"], "of": [7, None, torch.tensor(1j)]}
    sparse = torch.eye(20).to_sparse()
    nested = torch.nested.nested_tensor(boxes[1:], layout=torch.jagged)
    return images, torch.arange(9), boxes, words, sparse, nested


def test_a_sample_of_a_batch_shows_that_it_is_another():
    batch = a_batch()
    assert is_same_sample(sample_of(batch), sample_of(batch)) and sample_of(batch).numel() < 999
    rounded = [batch[0] * (1 + 1e-6), *batch[1:]]
    assert is_same_sample(sample_of(batch), sample_of(rounded))
    assert sample_of(["a", 3, iter([])]).tolist() == [0]
    assert sample_of([torch.ones(2, device="meta")]).tolist() == [0]


@pytest.mark.parametrize(
    "changed",
    [
        lambda images, targets, *rest: (images.flip(0), targets, *rest),
        lambda images, targets, *rest: (images, targets.flip(0), *rest),
        lambda images, targets, *rest: (images[1:], targets[1:], *rest),
        lambda images, targets, boxes, *rest: (images, targets, boxes[:-1], *rest),
        lambda images, targets, boxes, words, *rest: (
            images, targets, boxes, {**words, "mask": ~words["mask"]}, *rest,
        ),
    ],
)  # fmt: skip
def test_of_other_samples_it_is_another(changed):
    batch = a_batch()
    assert not is_same_sample(sample_of(batch), sample_of(changed(*batch)))
