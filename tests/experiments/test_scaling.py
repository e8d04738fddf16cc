"""The scaling of a layer over ranks: what is measured, what is simulated, what is drawn."""

import json

import pytest

from experiments import recording
from experiments.paper import scaling, scaling_plot
from experiments.paper.scaling_model import ALGORITHMS, Costs, Ranks, schedules, simulate
from experiments.paper.scaling_ranks import compared, on_ranks

COSTS = Costs(
    forward=3.0, backward=5.0, start=2.0, compose=20.0, merge=7.0, latency=100.0, of_byte=0.1,
    state=80.0, map=1680.0, warm=50, groups=4, group_forward=1.0, group_backward=2.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def record():
    return json.loads((recording.RECORDS / "scaling.json").read_text())


def test_one_rank_walks_all_steps():
    assert simulate("linear", 1000, 1, COSTS) == (8000.0, 0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("P", [2, 3, 8, 100])
def test_no_more_is_gained_than_there_are_ranks(algorithm, P):
    one, (seconds, _) = simulate("pipelined", 1200, 1, COSTS), simulate(algorithm, 1200, P, COSTS)
    least = min(simulate("linear", 1200, 1, COSTS)[0], one[0])
    assert seconds > least / P


def test_states_are_passed_on_one_after_another():
    message = COSTS.latency + COSTS.of_byte * COSTS.state
    assert simulate("linear", 1200, 4, COSTS)[0] == pytest.approx(1200 * 8 + 6 * message)


@pytest.mark.parametrize("P", [2, 3, 4, 5, 8, 9, 64, 1000])
def test_doubling_takes_few_rounds(P):
    ranks = Ranks(P, COSTS)
    schedules["recursive doubling"](ranks)
    assert ranks.rounds <= 2 * (P - 1).bit_length()


def test_the_paper_counts_logarithms():
    rows = {(row["algorithm"], row["n"]): row["units"] for row in scaling.counted()}
    for algorithm in ("recursive doubling", "blelloch"):
        assert rows[algorithm, 1 << 20] - rows[algorithm, 1 << 19] <= 4
    assert rows["linear", 1 << 20] == pytest.approx(2 * rows["linear", 1 << 19], abs=2)


@pytest.mark.slow
def test_two_ranks_are_measured():
    [point, _] = on_ranks(2, compared, "GRU", 400, 2, 4, "blelloch", 1, 0.01)
    assert point["speed_up"] > 0 and point["rounds"] == 3
    assert "GRU (400, 2, 4) on 2 ranks, blelloch" in scaling.said(point)


def test_the_simulation_is_near_what_was_measured(record):
    """Where messages are little of a step."""
    near = [
        point["simulated"] / point["speed_up"]
        for point in record["measured"]
        if "simulated" in point and point["seconds"]["divided"] > 0.1
    ]
    assert len(near) == 6 and all(0.75 < ratio < 1.25 for ratio in near)


def test_it_is_drawn(record, tmp_path):
    scaling_plot.draw(record, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 50_000


def test_the_page_quotes_the_record(record):
    page = " ".join((recording.RECORDS.parents[1] / "docs" / "ranks.md").read_text().split())
    gains = {
        (point["T"], point["B"], point["H"]): point
        for point in record["measured"]
        if point["algorithm"] == "auto" and point["kind"] == "GRU"
    }
    for (T, B, H), words in (
        ((10_000, 16, 64), " times"), ((1_000_000, 1, 20), ","), ((100_000, 1, 20), ","),
    ):  # fmt: skip
        assert f"({T:,}, {B}, {H}) {gains[T, B, H]['speed_up']:.2f}{words}" in page
    others = {
        point["kind"]: point["speed_up"]
        for point in record["measured"]
        if point["algorithm"] == "auto" and point["T"] == 100_000
    }
    assert f"An RNN of that last size gains {others['RNN']:.2f} times" in page
    assert f"an LSTM {others['LSTM']:.2f}," in page
    seconds = gains[100_000, 1, 20]["seconds"]
    assert 0.07 < 1 - seconds["span"] / seconds["divided"] < 0.1  # "about a twelfth"
    one, *others = (row["bytes"] for row in record["memory"]["ranks"])
    two, four, eight = (f"{bytes / one:.2f}" for bytes in others)
    assert f"{two} of one process' with 2 ranks, {four} with 4, {eight} with 8" in page
    counted = {row["algorithm"]: row["units"] for row in record["counted"]}  # of the last n
    assert f"takes {counted['recursive doubling']:.0f} products and messages" in page
