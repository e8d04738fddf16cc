"""Public packages, unchanged: the same losses. `make third-party`; what it takes is in run.py."""

import os
import subprocess

import pytest

from tests.third_party.run import LAYERS, LOOPS, ROOT, TOLERANCE, compare, python_of

pytestmark = pytest.mark.third_party


def each(models_of):
    return pytest.mark.parametrize(
        ("package", "model"),
        [(package, model) for package, models in models_of.items() for model in models],
    )


@each(LAYERS)
def test_losses_are_those_of_the_default(package, model):
    row = compare(package, model, pairs=1)
    assert row["steps"] >= 20 and row["difference"] <= TOLERANCE, row
    assert "1 of 1 recurrent layers accelerated" in row["accelerated"]


@each(LOOPS)
def test_losses_of_scanned_loops_are_those_of_the_loop(package, model):
    row = compare(package, model, pairs=1)
    assert row["steps"] >= 20 and row["difference"] <= TOLERANCE, row
    in_windows = [" windows of " in scan for scan in row["scans"]]
    assert all(in_windows) and bool(in_windows) == (" 48 steps" not in model), row


def test_attach_under_ray_train_on_two_workers():
    subprocess.run(
        [python_of("ray"), "-m", "tests.third_party.ray_training"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=600,
    )  # fmt: skip


@pytest.mark.parametrize("run", ["tests.third_party.opacus_training", "unittest"])
def test_opacus_trains_attached_layers(run):
    """Gradients of each sample and losses are those of Opacus' layers; and its tests pass."""
    own = ["tests.third_party.opacus_own"] if run == "unittest" else []
    subprocess.run(
        [python_of("opacus"), "-m", run, *own],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=600,
    )  # fmt: skip
