"""Trainings killed at random moments (SIGKILL) and resumed end with the bits of an unbroken one."""

import os
import time

import pytest
from support import forked
from support.killed_training import check_kills, said, start
from support.resumed_checks import assert_rest, final, logged, newest, same, step_of
from support.resumed_training import BITSTREAM, CIFAR10, DIGITS, IRMAS, write_cifar10

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
SETTINGS = {"checkpoints": {"every_n_train_steps": 7}, "dropout": 0.2}

# Times as many runs are killed as in `make test`: eight.
MORE = int(os.environ.get("BPPSA_KILLS", 1))


def in_the_middle(steps, batches):
    return [step for step in steps if step % batches]


@pytest.mark.parametrize("num_workers, runs", [(0, 2 * MORE), (2, 2 * MORE)])
def test_bitstream(tmp_path, num_workers, runs):
    batches = 100 if num_workers == 0 else 30
    data = {"steps": 50, "num_samples": 4 * batches, "batch_size": 4, "num_val_samples": 8}
    data["num_workers"] = num_workers
    options = {"files": tmp_path / "data", "data": data, **SETTINGS}
    options["trainer"] = {"val_check_interval": 0.5}
    steps = check_kills(tmp_path, BITSTREAM, options, runs)
    print(f"\nworkers {num_workers}: {len(steps)} kills, resumed after steps {sorted(steps)}")
    assert len(steps) >= runs
    assert num_workers or in_the_middle(steps, batches)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_digits(tmp_path, num_workers):
    pytest.importorskip("sklearn", reason="the experiments' extra brings scikit-learn")
    data = {"batch_size": 32, "augment": True, "num_workers": num_workers}
    options = {"files": tmp_path, "data": data, **SETTINGS}
    steps = check_kills(tmp_path, DIGITS, options, MORE)
    assert MORE == 1 or in_the_middle(steps, 45)


def test_cifar10(tmp_path):
    pytest.importorskip("torchvision", reason="the vision extra brings torchvision")
    write_cifar10(tmp_path / "data", images=200)
    data = {"batch_size": 16, "augment": True}
    options = {"files": tmp_path / "data", "data": data, **SETTINGS}
    steps = check_kills(tmp_path, CIFAR10, options, MORE)
    assert MORE == 1 or in_the_middle(steps, 57)


def test_irmas(tmp_path):
    pytest.importorskip("pretty_midi", reason="the audio extra brings pretty_midi")
    pytest.importorskip("librosa", reason="the audio extra brings librosa")
    data = {"per_class": 3, "batch_size": 2, "val_split": 0.34, "test_split": 0.33}
    options = {"files": tmp_path / "data", "data": {**data, "prepare_workers": 1}}
    options |= {"checkpoints": {"every_n_train_steps": 2}, "dropout": 0.2}
    steps = check_kills(tmp_path, IRMAS, options, MORE)
    assert MORE == 1 or in_the_middle(steps, 5)


@pytest.fixture
def start_two():
    """Starts the two processes of one training, which are killed at the end at last."""
    all_started = []

    def start_two(folder, options, checkpoint=None):
        for variables in forked.of_ranks(2):
            all_started.append(start(folder, BITSTREAM, options, checkpoint, **variables))
        return all_started[-2:]

    yield start_two
    for process in all_started:
        forked.kill(process)


def assert_end(processes, folder):
    for process in processes:
        process.join(300)
        assert process.exitcode == 0, said(folder)


def test_two_processes(tmp_path, start_two):
    data = {"steps": 50, "num_samples": 802, "batch_size": 4, "num_val_samples": 8}
    options = {
        "files": tmp_path / "data",
        "data": data,
        "checkpoints": {"every_n_train_steps": 7},
        "trainer": {"strategy": "bppsa_ddp", "devices": 2, "max_epochs": 2},
    }
    whole, first, last = (tmp_path / name for name in ("whole", "first", "last"))
    assert_end(start_two(whole, options), whole)
    lines = len(logged(whole))
    processes = start_two(first, options)
    while processes[0].is_alive() and len(logged(first)) < lines * 2 // 3:
        time.sleep(0.005)
    assert processes[0].is_alive(), "it ended before it was killed"
    for process in processes:
        forked.kill(process)
    checkpoint = newest(first)
    assert in_the_middle([step_of(checkpoint)], 101)
    assert_end(start_two(last, options, checkpoint), last)
    assert_rest(last, whole)
    assert same(final(last, rank=1), final(whole, rank=1))
