"""The event simulation: delays and intervals, read off its events."""

import random

import pytest

from bppsa_lightning.layerpipe.assignment import as_pipedream, assign
from bppsa_lightning.layerpipe.costs import LayerCost, Product, costs_of, macs, systolic
from bppsa_lightning.layerpipe.networks import NETWORKS
from bppsa_lightning.layerpipe.pipedream import partition
from bppsa_lightning.layerpipe.simulator import Simulation


def layers(seed, count):
    rng = random.Random(seed)
    return [
        LayerCost(
            str(m), rng.randint(1, 9), rng.randint(1, 9) * (m > 0), rng.randint(1, 9), 1, 1, 1
        )
        for m in range(count)
    ]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("processors", [1, 2, 4])
def test_delays_and_intervals_of_both_schedules(seed, processors):
    costs = layers(seed, 6)
    home = as_pipedream(costs, partition(costs, processors), processors)
    after = [processors - 1 - stage for stage in home.forward]
    for schedule, each in (("layerpipe", 2), ("pipedream", 1)):
        run = Simulation(costs, home, schedule, 60)
        assert run.observed_delays() == [each * s for s in after]
        # The slowest stage never waits, once the pipeline is full.
        assert run.interval() == pytest.approx(home.interval(costs), rel=0.02)
        assert run.utilisation() == pytest.approx(home.utilisation(costs), rel=0.02)
    # Nothing runs before what it reads, and no processor does two things at once.
    ends = {done.task: done.end for done in run.done}
    for done in run.done:
        if done.task.kind == "F" and done.task.layer:
            assert done.start >= ends[run._f(done.task.batch, done.task.layer - 1)]
    for p in range(processors):
        mine = sorted((d.start, d.end) for d in run.done if d.task.processor == p)
        assert all(a[1] <= b[0] for a, b in zip(mine, mine[1:], strict=False))


def test_equal_layers_reach_the_bound_with_a_stage_for_each():
    costs = costs_of(NETWORKS["Transformer"](1), macs)
    found = assign(costs, 9)
    delays = [2 * (len(costs) - 1 - m) for m in range(len(costs))]
    run = Simulation(costs, found, "layerpipe", 100, delays)
    assert run.interval() == pytest.approx(found.interval(costs), rel=0.01)
    assert run.observed_delays() == delays


def test_products_of_the_networks():
    """Multiply-and-adds of an image, as they are known of these networks, in thousand millions."""
    known = {"VGG-11": 7.6, "VGG-16": 15.5, "AlexNet": 0.71, "ResNet-18": 1.8, "ResNet-34": 3.7,
             "ResNet-50": 4.1}  # fmt: skip
    for name, wanted in known.items():
        costs = costs_of(NETWORKS[name](1), macs)
        assert sum(cost.forward for cost in costs) / 1e9 == pytest.approx(wanted, rel=0.04)
        assert costs[0].input_gradient == 0
        for cost in costs[1:]:
            assert cost.input_gradient == cost.weight_gradient == cost.forward


def test_cycles_of_an_array():
    # (6, 5) by (5, 7) on 4 x 4: two by two folds of 2 * 4 + 4 + 5 - 2 cycles; weights: two by two
    # folds of 2 * 4 + 4 + 6 - 2.
    assert systolic(4, 4, "output")(Product(6, 5, 7)) == 4 * 15
    assert systolic(4, 4, "weight")(Product(6, 5, 7, 3)) == 3 * 4 * 16
    with pytest.raises(ValueError, match="stationary: found 'input'"):
        systolic(4, 4, "input")
