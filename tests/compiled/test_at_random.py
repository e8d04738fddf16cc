"""Some seeds of `at_random.py`, and whether it sees what it is there for."""

import pytest
from compiled import at_random

from bppsa_lightning.ops import _recurrent_autograd

# Of each way to compile; in 8 weights are frozen, in 16 pruned, in 28 normalised.
SEEDS = (3, 8, 13, 16, 28)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning")
def test_random_models_are_one_graph_with_the_results_of_stock_ones(seed):
    assert not at_random.run(at_random.Case(seed))


def test_wrong_gradients_are_seen(monkeypatch):
    planned = _recurrent_autograd.planned_backward
    monkeypatch.setattr(
        _recurrent_autograd, "planned_backward", lambda *a: (2 * planned(*a)[0], *planned(*a)[1:])
    )
    assert any("input" in line for line in at_random.run(at_random.Case(16)))
