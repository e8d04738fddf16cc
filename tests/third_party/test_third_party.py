"""Public packages, unchanged: the same losses. `make third-party`; what it takes is in run.py."""

import pytest

from tests.third_party.run import MODELS, TOLERANCE, compare

pytestmark = pytest.mark.third_party


@pytest.mark.parametrize(
    ("package", "model"),
    [(package, model) for package, models in MODELS.items() for model in models],
)
def test_losses_are_those_of_the_default(package, model):
    row = compare(package, model, pairs=1)
    assert row["steps"] >= 20 and row["difference"] <= TOLERANCE, row
    assert "1 of 1 recurrent layers accelerated" in row["explanation"]
