"""Public packages, unchanged: the same losses. `make third-party`; what it takes is in run.py."""

import os
import subprocess

import pytest

from tests.third_party.run import MODELS, ROOT, TOLERANCE, compare, python_of

pytestmark = pytest.mark.third_party


@pytest.mark.parametrize(
    ("package", "model"),
    [(package, model) for package, models in MODELS.items() for model in models],
)
def test_losses_are_those_of_the_default(package, model):
    row = compare(package, model, pairs=1)
    assert row["steps"] >= 20 and row["difference"] <= TOLERANCE, row
    assert "1 of 1 recurrent layers accelerated" in row["accelerated"]


def test_attach_under_ray_train_on_two_workers():
    subprocess.run(
        [python_of("ray"), "-m", "tests.third_party.ray_training"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=600,
    )  # fmt: skip
