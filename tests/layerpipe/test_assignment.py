"""PipeDream's partition and LayerPipe's assignment against all there are, on small cases."""

import itertools
import random

import pytest

from bppsa_lightning.layerpipe.assignment import as_pipedream, assign
from bppsa_lightning.layerpipe.costs import LayerCost
from bppsa_lightning.layerpipe.pipedream import interval, partition, replicated


def layers(seed, count):
    """Random costs; some are zero, some are large, so that D needs three parts if it could."""
    rng = random.Random(seed)
    numbers = [0, 1, 1, 2, 3, 5, 8, 21]
    return [
        LayerCost(
            str(m), rng.choice(numbers[1:]), rng.choice(numbers) if m else 0, rng.choice(numbers),
            rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 9),
        )
        for m in range(count)
    ]  # fmt: skip


def cuts_of(count, processors, least):
    """All ways to give `count` layers in order to processors, `least` or more each: edges."""
    for cuts in itertools.combinations_with_replacement(range(count + 1), processors - 1):
        edges = (0, *cuts, count)
        if all(b - a >= least for a, b in itertools.pairwise(edges)):
            yield edges


def smallest_load(costs, processors, fixed, parts):
    """The smallest largest load, D of layer m divided over the processors parts[m] in any way.

    Divided in order, it is that of the most loaded run of consecutive processors: what nobody else
    may do of D, over their number.
    """
    most = 0.0
    for first, last in itertools.combinations_with_replacement(range(processors), 2):
        run = set(range(first, last + 1))
        load = sum(fixed[first : last + 1])
        load += sum(c.input_gradient for c, own in zip(costs, parts, strict=True) if own <= run)
        most = max(most, load / len(run))
    return most


def divisions(edges, count):
    """For each layer the processors of its D, if D is cut at `edges`, or within the layers there.

    Boundary p lies at the beginning of layer edges[p], or anywhere within it.
    """
    processors = len(edges) - 1
    for inside in itertools.product([False, True], repeat=processors - 1):
        parts = [set() for _ in range(count)]
        for p in range(processors):
            begin, end = edges[p], edges[p + 1]
            for m in range(begin, end):
                parts[m].add(p)
            if p < processors - 1 and inside[p] and end < count:
                parts[end].add(p)
        if all(found and max(found) - min(found) <= 1 for found in parts):
            yield parts


def by_brute_force(costs, processors, intra, inter, near=None):
    """The smallest interval over every division of F, D and G."""
    count, best = len(costs), float("inf")
    for f in cuts_of(count, processors, 1 if near else 0):
        f_owner = owners_of(f, count)
        for g in cuts_of(count, processors, 0) if intra else [f]:
            g_owner = owners_of(g, count)
            if near and any(
                c.weight_gradient and b != a and not (near[m] and b == a + 1)
                for m, (a, b, c) in enumerate(zip(f_owner, g_owner, costs, strict=True))
            ):
                continue
            fixed = [0.0] * processors
            for m, cost in enumerate(costs):
                fixed[f_owner[m]] += cost.forward
                fixed[g_owner[m]] += cost.weight_gradient
            if max(fixed) >= best:
                continue
            for parts in d_parts(f, count, processors, inter, near):
                best = min(best, smallest_load(costs, processors, fixed, parts))
    return best


def owners_of(edges, count):
    return [next(p for p in range(len(edges) - 1) if edges[p] <= m < edges[p + 1])
            for m in range(count)]  # fmt: skip


def d_parts(f, count, processors, inter, near):
    """The divisions of D that are allowed."""
    if near:
        for parts in divisions(f, count):
            owner = owners_of(f, count)
            away = [m for m in range(count) if parts[m] != {owner[m]}]
            if all(near[m] and inter for m in away):
                yield parts
        return
    for d in cuts_of(count, processors, 0):
        if inter:
            yield from divisions(d, count)
        else:
            yield [{p} for p in owners_of(d, count)]


MODES = [(True, True), (True, False), (False, True)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("intra", "inter"), MODES)
def test_no_assignment_is_shorter(seed, intra, inter):
    for count, processors in ((3, 2), (4, 2), (3, 3), (4, 3)):
        costs = layers(100 * seed + count, count)
        found = assign(costs, processors, intra=intra, inter=inter)
        wanted = by_brute_force(costs, processors, intra, inter)
        assert found.interval(costs) == pytest.approx(wanted, rel=1e-6)
        for shares in found.input_gradient:
            assert 1 <= len(shares) <= 2
            assert sum(part for _, part in shares) == pytest.approx(1)
            assert len(shares) == 1 or shares[1][0] == shares[0][0] + 1


@pytest.mark.parametrize("seed", range(12))
def test_no_assignment_for_the_executor_is_shorter(seed):
    rng = random.Random(seed)
    for count, processors in ((3, 2), (4, 2), (4, 3), (5, 3)):
        costs = layers(100 * seed + count, count)
        movable = [rng.random() < 0.7 for _ in costs]
        found = assign(costs, processors, movable=movable)
        wanted = by_brute_force(costs, processors, True, True, movable)
        assert found.interval(costs) == pytest.approx(wanted, rel=1e-6)
        assert len(found.cuts) == processors - 1


@pytest.mark.parametrize("seed", range(40))
def test_pipedreams_partition_is_the_best(seed):
    for count, processors in ((1, 1), (3, 2), (5, 3), (6, 4), (5, 5)):
        costs = layers(seed, count)
        cuts = partition(costs, processors)
        every = (edges[1:-1] for edges in cuts_of(count, processors, 1))
        assert interval(costs, cuts) == min(interval(costs, other) for other in every)
        assert as_pipedream(costs, cuts, processors).interval(costs) == interval(costs, cuts)
        assert replicated(costs, processors) <= interval(costs, cuts)


def test_fixed_cuts_and_what_is_communicated():
    costs = [LayerCost(str(m), 2.0, 2.0 * (m > 0), 2.0, 10, 5, 10) for m in range(4)]
    home = as_pipedream(costs, (2,), 2)
    assert home.cuts == (2,) and home.utilisation(costs) == pytest.approx(22 / 24)
    # The output of layer 1 forth, the gradient of it back.
    assert home.communication(costs) == 20
    found = assign(costs, 2, cuts=(2,), movable=[True] * 4)
    assert found.cuts == (2,) and found.interval(costs) == pytest.approx(11)


@pytest.mark.parametrize("processors", [0, 5])
def test_more_processors_than_layers(processors):
    costs = layers(0, 4)
    for call in (assign, partition):
        with pytest.raises(ValueError, match=f"processors: found {processors}, wanted 1 to 4"):
            call(costs, processors)
