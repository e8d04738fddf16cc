"""A training that goes on from a checkpoint gets the batches that it would have got."""

import os
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader

from bppsa_lightning.datasets import BitstreamDataModule, DigitsDataModule

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "kills", "processes"),
    [
        ("bitstream", 4, 1),
        ("digits", 2, 1),
        ("cifar10", 2, 1),
        ("irmas", 2, 1),
        ("bitstream", 1, 2),
    ],
)
def test_killed_and_resumed_it_ends_with_the_same_bits(data, kills, processes):
    for module in {"digits": ["sklearn"], "cifar10": ["torchvision"], "irmas": ["soundfile"]}.get(
        data, []
    ):
        pytest.importorskip(module)
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, str(TESTS / "support" / "resumed.py"), data, str(kills), "0"]
        + [str(processes)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    assert f"{kills} of {kills} ends are bit-equal" in run.stdout


def bitstream(folder, **settings):
    data = BitstreamDataModule(folder, steps=8, num_samples=50, **{"batch_size": 8, **settings})
    data.prepare_data()
    data.setup("fit")
    return data


def labels_and_bits(loader):
    return [(x.flatten(1).tolist(), y.tolist()) for x, y in loader]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_goes_on_where_it_was(tmp_path, num_workers):
    torch.manual_seed(1)
    loader = bitstream(tmp_path, num_workers=num_workers).train_dataloader()
    first, second, third = (labels_and_bits(loader) for _ in range(3))
    assert first != second != third
    torch.manual_seed(1)
    again = bitstream(tmp_path, num_workers=num_workers).train_dataloader()
    assert labels_and_bits(again) == first
    batches = iter(again)
    assert [labels_and_bits([next(batches)])[0] for _ in range(3)] == second[:3]
    state = again.state_dict()
    assert state["epoch"] == 1 and state["batches"] == 3
    torch.manual_seed(99)
    resumed = bitstream(tmp_path, num_workers=num_workers).train_dataloader()
    resumed.load_state_dict(state)
    resumed.sampler.set_epoch(1)  # as the Trainer does
    assert labels_and_bits(resumed) == second[3:]
    assert labels_and_bits(resumed) == third


def test_the_first_epoch_has_the_order_of_any_shuffled_loader(tmp_path):
    data = bitstream(tmp_path)
    torch.manual_seed(3)
    found = labels_and_bits(data.train_dataloader())
    torch.manual_seed(3)
    plain = DataLoader(data._datasets["train"], 8, shuffle=True, collate_fn=lambda batch: batch)
    assert found == labels_and_bits(plain)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch_size": 4}, "batch_size: found 4, but the checkpoint was written with 8"),
        ({"num_samples": 60}, "num_samples: found 60, but the checkpoint was written with 50"),
    ],
)
def test_another_loader_is_refused(tmp_path, changed, message):
    state = bitstream(tmp_path).train_dataloader().state_dict()
    settings = {"steps": 8, "num_samples": 50, "batch_size": 8, **changed}
    data = BitstreamDataModule(tmp_path, **settings)
    data.prepare_data()
    data.setup("fit")
    with pytest.raises(ValueError, match=message):
        data.train_dataloader().load_state_dict(state)


class Order(pl.LightningModule):
    """Notes which labels come."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.labels = []

    def training_step(self, batch, batch_idx):
        self.labels.append(batch[1].tolist())
        return self.weight

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def trained(data, **settings):
    model = Order()
    pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **settings,
    ).fit(model, data)  # fmt: skip
    return model.labels


def test_each_epoch_has_an_order_of_its_own(tmp_path):
    labels = trained(bitstream(tmp_path), max_epochs=2)
    assert len(labels) == 14 and labels[:7] != labels[7:]
    assert sorted(sum(labels[:7], [])) == sorted(sum(labels[7:], []))


def test_overfitting_batches_sees_the_same_ones_in_each_epoch(tmp_path):
    labels = trained(bitstream(tmp_path), max_epochs=3, overfit_batches=2)
    assert labels[:2] == labels[2:4] == labels[4:]


def test_augmented_batches_do_not_depend_on_the_process_that_makes_them():
    pytest.importorskip("sklearn", reason="the experiments' extra brings scikit-learn")
    found = []
    for num_workers in (0, 2):
        data = DigitsDataModule(batch_size=256, seed=1, augment=True, num_workers=num_workers)
        data.setup()
        loader = data.train_dataloader()
        found.append([torch.cat([x for x, _ in loader]) for _ in range(2)])
    for alone, by_workers in zip(*found, strict=True):
        assert torch.equal(alone, by_workers)
    assert not torch.equal(*found[0])


def test_a_folder_in_place_of_the_cache_file_is_named(tmp_path):
    data = bitstream(tmp_path)
    [path] = tmp_path.glob("*train*")
    path.unlink()
    path.mkdir()
    with pytest.raises(
        IsADirectoryError, match="found a folder, wanted a file, or nothing"
    ) as info:
        data.prepare_data()
    assert str(path) in str(info.value)
