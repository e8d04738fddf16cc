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


# Augmentation


def originals(data):
    """The training images by label, and what a black pixel is: (3, 1, 1)."""
    return data._datasets["train"].x, data._black.view(3, 1, 1)


def candidates(image, black, flip):
    """Every image that may become of one."""
    padded = torch.nn.functional.pad(image - black, [4] * 4) + black
    for source in (padded, padded.flip(-1)) if flip else (padded,):
        for top in range(9):
            for left in range(9):
                yield (top, left), source[:, top : top + 32, left : left + 32]


def test_augmentation_shifts_and_mirrors_training_images_alone(make):
    plain, data = make(batch_size=100), make(batch_size=100, augment=True)
    for module in (plain, data):
        module.setup()
    order, _ = images(plain.train_dataloader())
    (x, y), (_, y_plain) = (images(m.train_dataloader()) for m in (data, plain))
    assert torch.equal(y, y_plain) and x.dtype == torch.float32  # the order is the same
    black = originals(data)[1]
    seen, mirrored = set(), 0
    for original, image in zip(order[:100], x[:100]):
        found = [
            (place, index >= 81)
            for index, (place, other) in enumerate(candidates(original, black, data.flip))
            if torch.allclose(image, other, atol=1e-5)
        ]
        assert found
        seen.add(found[0][0])
        mirrored += found[0][1]
    assert len(seen) > 40
    assert 25 < mirrored < 75 if data.flip else mirrored == 0
    for name in ("val_dataloader", "test_dataloader", "predict_dataloader"):
        a, b = (images(getattr(m, name)())[0] for m in (plain, data))
        assert torch.equal(a, b)


def test_augmentation_is_off_by_default_and_black_is_black(make):
    data = make()
    data.setup()
    x, black = originals(data)
    assert data.hparams.augment is False and data._datasets["train"].augment is None
    torch.testing.assert_close(x.amin((0, 2, 3)), black.flatten(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_augmentation_follows_the_seed_and_is_new_each_epoch(make, num_workers):
    found = []
    for seed in (0, 0, 1):
        data = make(batch_size=300, seed=seed, augment=True, num_workers=num_workers)
        data.setup()
        loader = data.train_dataloader()
        found.append([images(loader)[0] for _ in range(2)])
    for a, b in zip(found[0], found[1]):
        assert torch.equal(a, b)
    assert not torch.equal(found[0][0], found[2][0])
    again = images(data.train_dataloader())[0]
    assert torch.equal(again, found[2][0])
    if num_workers:
        return
    # Each image is drawn anew in the second epoch.
    sums = [epoch.double().sum((1, 2, 3)).sort()[0] for epoch in found[0]]
    assert not torch.allclose(*sums)


def test_workers_draw_different_shifts(make):
    data = make(batch_size=4, augment=True, num_workers=2)
    data.setup()
    data._datasets["train"].x[:] = torch.rand(32)  # every image the same
    batches = [x for x, _ in data.train_dataloader()]
    assert not torch.equal(batches[0], batches[1])


def test_settings_survive_a_checkpoint(make):
    data = make(batch_size=np.int64(8), seed=np.int64(3), augment=True)
    assert [type(data.hparams[n]) for n in ("batch_size", "seed", "augment")] == [int, int, bool]
    with pytest.raises(TypeError, match="augment is 1 .int.; wanted True or False"):
        make(augment=1)


# Refusals


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
