"""Layers on different ranks: what is simulated, measured and drawn."""

import json

import pytest

from experiments import recording
from experiments.paper import depth_scaling
from experiments.paper.depth_ranks import WAYS, compared, costs
from experiments.paper.scaling_ranks import on_ranks
from experiments.paper.sections.depth_scaling import SECTION


def of(latency=0.0, compose=0.0):
    """Costs of 64 units of work; the forward a quarter of it."""
    each = {
        P: {
            "forward": 16.0 / P, "back": 24.0 / P, "weights": 24.0 / P, "compose": compose,
            "merge": 0.0, "through": 0.0, "map": 0.0, "groups": 4 * P,
            "group_forward": 4.0 / P / P, "group_back": 6.0 / P / P, "group_weights": 6.0 / P / P,
        }
        for P in (1, 2, 4, 8, 64)
    }  # fmt: skip
    return {"latency": latency, "of_byte": 0.0, "state": 0.0, "ranks": each}


@pytest.mark.parametrize("P", [2, 4, 8, 64])
def test_costs_add_up(P):
    """Without messages: what is passed on takes as long as one rank, but for the weights."""
    step, backward = depth_scaling.simulate("linear", P, of())
    assert (step, backward) == (pytest.approx(40 + 24 / P), pytest.approx(24 + 24 / P))
    # A scan that costs nothing: the last rank's walk, then all others'.
    step, backward = depth_scaling.simulate("blelloch", P, of())
    assert (step, backward) == (pytest.approx(16 + 72 / P), pytest.approx(72 / P))
    for way in WAYS:
        assert depth_scaling.simulate(way, P, of())[0] >= 64 / P


@pytest.mark.parametrize("P", [4, 8, 64])
def test_rounds_grow_with_the_logarithm(P):
    still, late = (depth_scaling.simulate("blelloch", P, of(latency))[1] for latency in (0, 1))
    assert late - still <= 2 * (P - 1).bit_length()
    still, late = (depth_scaling.simulate("linear", P, of(latency))[1] for latency in (0, 1))
    assert late - still == pytest.approx(P - 1)


@pytest.mark.slow
def test_two_ranks_are_measured():
    [point, _] = on_ranks(2, compared, 4, 2, 3, 2, 1)
    assert set(point["speed_up"]) == set(WAYS) and min(point["seconds"].values()) > 0
    [found, _] = on_ranks(2, costs, 4, 2, 3, 4)
    assert sorted(found["ranks"]) == [1, 2, 4]
    # The weights of one layer of 3 numbers, and the slopes of two samples: nothing to multiply.
    assert found["ranks"][4]["map"] == 4 * (9 + 2 * 3) and found["ranks"][4]["compose"] > 0


def test_the_record_is_drawn_and_told(tmp_path):
    record = json.loads((recording.RECORDS / "depth_scaling.json").read_text())
    depth_scaling.draw(record, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 50_000
    said = SECTION.text({"depth_scaling": record})
    assert said.count("64 layers of 16, 1 sample ") == 7
