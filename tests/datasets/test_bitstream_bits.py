"""The bits of the bitstream data: the published ones, of the promised distribution."""

import numpy as np
import pytest
from support.bitstream import SMALL, SMALL_SHA256, SPLITS, digest, files, make, whole

from bppsa_lightning.datasets import bitstream_cache

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


# The bits
def test_bits_are_the_published_ones(tmp_path):
    assert digest(make(tmp_path)) == SMALL_SHA256


def test_bits_do_not_depend_on_the_block_size(tmp_path, monkeypatch):
    monkeypatch.setattr(bitstream_cache, "_BLOCK_DRAWS", 7 * SMALL["steps"] + 1)
    assert digest(make(tmp_path)) == SMALL_SHA256


def test_another_instance_and_folder_give_the_same_bytes(tmp_path):
    make(tmp_path / "a")
    make(tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("num_samples", [1, 9, 60, 64])
def test_classes_are_balanced_and_shuffled(tmp_path, num_samples):
    _, labels = whole(make(tmp_path, num_samples=num_samples), "train")
    counts = np.bincount(labels, minlength=10)
    assert counts.sum() == num_samples
    assert counts.max() - counts.min() <= 1
    if num_samples == 60:
        assert not np.array_equal(labels, np.arange(60) % 10)
        assert not np.array_equal(labels, np.sort(labels))


@pytest.mark.parametrize("split", SPLITS)
def test_share_of_ones_follows_the_class(tmp_path, split):
    sizes = {"num_samples": 400, "num_val_samples": 400, "num_test_samples": 400}
    bits, labels = whole(make(tmp_path, steps=500, **sizes), split)
    for label in range(10):
        p = 0.05 + 0.1 * label
        ones = bits[labels == label]
        # Five standard deviations of the mean of 20,000 bits, then of each step's 40.
        assert abs(ones.mean() - p) < 5 * np.sqrt(p * (1 - p) / ones.size)
        assert np.abs(ones.mean(axis=0) - p).max() < 5 * np.sqrt(p * (1 - p) / len(ones))


def test_steps_are_independent(tmp_path):
    bits, labels = whole(make(tmp_path, steps=500, num_samples=400), "train")
    noise = bits - (0.05 + 0.1 * labels[:, None])
    noise /= noise.std()
    for lag in (1, 2, 7, 8, 64, 128):
        products = noise[:, lag:] * noise[:, :-lag]
        assert abs(products.mean()) < 5 / np.sqrt(products.size)
    assert len(np.unique(bits, axis=0)) == len(bits)


def test_probabilities_zero_and_one_are_exact(tmp_path):
    data = make(tmp_path, num_classes=3, first_probability=1, probability_step=-0.5)
    bits, labels = whole(data, "train")
    assert bits[labels == 0].all()
    assert not bits[labels == 2].any()
    assert 0.4 < bits[labels == 1].mean() < 0.6


@pytest.mark.parametrize("first, step, ones", [(0.1 + 1e-12, 0.3, True), (0.3, -0.1, False)])
def test_probabilities_may_leave_the_range_by_rounding(tmp_path, first, step, ones):
    assert not 0 <= first + 3 * step <= 1
    settings = {"num_classes": 4, "first_probability": first, "probability_step": step}
    bits, labels = whole(make(tmp_path, **settings), "train")
    assert (bits[labels == 3] == ones).all()


def test_seeds_and_splits_differ(tmp_path):
    size = {f"num_{split}samples": 60 for split in ("", "val_", "test_")}
    data = [make(tmp_path, seed=seed, **size) for seed in (0, 1, 2**64 - 1)]
    rows = np.concatenate([whole(one, split)[0] for one in data for split in SPLITS])
    # Streams of the extreme classes repeat by chance; those of the middle ones do not.
    middle = np.abs(rows.mean(axis=1) - 0.5) < 0.2
    assert len(np.unique(rows[middle], axis=0)) == middle.sum() > 100
    orders = {whole(one, split)[1].tobytes() for one in data for split in SPLITS}
    assert len(orders) == 9
