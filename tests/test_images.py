"""The datamodules of images: shapes, splits, scale, order, refusals."""

import numpy as np
import pytest
import torch

from bppsa_lightning.datasets import CIFAR10DataModule, DigitsDataModule, cifar10

LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader")


class FakeCIFAR10:
    """torchvision's class, over a thousand random images."""

    def __init__(self, root, train):
        if root != "here":
            raise RuntimeError("Dataset not found or corrupted. You can use download=True")
        count = 1000 if train else 200
        generator = np.random.default_rng(train)
        self.data = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        self.data[:, 0, 0, 0] = 255
        self.targets = [i % 10 for i in range(count)]


@pytest.fixture(params=["digits", "cifar10"])
def make(request, monkeypatch):
    if request.param == "digits":
        pytest.importorskip("sklearn", reason="the experiments' extra brings scikit-learn")
        return DigitsDataModule
    sets = type("datasets", (), {"CIFAR10": FakeCIFAR10})
    monkeypatch.setattr(cifar10, "_torchvision", lambda: sets)
    return lambda **settings: CIFAR10DataModule("here", **settings)


def images(loader):
    batches = list(loader)
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def test_batches_have_the_documented_shapes_and_scale(make):
    data = make()
    data.prepare_data()
    data.setup("fit")
    x, y = next(iter(data.train_dataloader()))
    assert x.shape == (128, 3, 32, 32) and x.dtype == torch.float32 and x.is_contiguous()
    assert y.shape == (128,) and y.dtype == torch.int64
    x, y = images(data.train_dataloader())
    assert abs(x.mean()) < 0.3 and 0.7 < x.std() < 1.5  # the fakes are uniform
    assert sorted(y.unique().tolist()) == list(range(10))


def test_splits_are_disjoint_and_the_same_for_a_seed(make):
    found = []
    for seed in (0, 0, 1):
        data = make(batch_size=50, seed=seed)
        data.setup()
        found.append([images(getattr(data, name)()) for name in LOADERS])
    for (a, b), (c, d) in zip(found[0], found[1], strict=True):
        assert torch.equal(a, c) and torch.equal(b, d)
    assert not torch.equal(found[0][0][0], found[2][0][0])
    whole = torch.cat([x for x, _ in found[0]]).flatten(1)
    assert len(whole.unique(dim=0)) >= 0.99 * len(whole)


def test_training_is_shuffled_anew_each_epoch_and_validation_is_not(make):
    data = make(batch_size=50)
    data.setup()
    loader = data.train_dataloader()
    assert not torch.equal(images(loader)[0], images(loader)[0])
    assert torch.equal(images(data.val_dataloader())[0], images(data.val_dataloader())[0])


def test_what_they_refuse(make, monkeypatch):
    with pytest.raises(ValueError, match="batch_size is 0; wanted an integer of at least 1"):
        make(batch_size=0)
    with pytest.raises(RuntimeError, match=r"the train split is not loaded; call setup\(\) first"):
        make().train_dataloader()


def test_cifar_says_where_it_looked(monkeypatch):
    sets = type("datasets", (), {"CIFAR10": FakeCIFAR10})
    monkeypatch.setattr(cifar10, "_torchvision", lambda: sets)
    with pytest.raises(FileNotFoundError, match="data_dir is 'elsewhere', where no whole CIFAR-10"):
        CIFAR10DataModule("elsewhere").setup()
