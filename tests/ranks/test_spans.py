"""Which parts of a chain each rank holds."""

import random
from itertools import combinations

import pytest

from bppsa_lightning.ranks import Spans


@pytest.mark.parametrize("seed", range(30))
def test_balanced_spans_are_the_best_there_are(seed):
    r = random.Random(seed)
    n, P = r.randint(1, 8), r.randint(1, 5)
    costs = [r.choice((0.0, 1.0, r.random(), 100 * r.random())) for _ in range(n)]
    spans = Spans.balanced(costs, P)
    assert sum(spans.lengths) == n and len(spans.lengths) == P
    found = max(sum(costs[spans.of(rank)]) for rank in range(P))
    best = min(
        max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, n)))
        for k in range(min(P, n))
        for cuts in combinations(range(1, n), k)
    )
    assert found == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_equal_spans():
    assert Spans.equal(7, 3).lengths == [3, 2, 2]
    assert Spans.equal(1, 3).lengths == [1, 0, 0]
    assert Spans.balanced([], 2).lengths == [0, 0]
