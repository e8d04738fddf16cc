"""Segments in the order of time, as few runs."""

import pytest
import torch

from bppsa_lightning.windows.order import Run, followers, joined, runs

# Groups of 2 steps by themselves; of 5 windows; of 2 that were walked again; the rest as one.
ORDERS = {
    "all met": ([(0, k) for k in range(5)], 1),
    "after a head": ([(0, 0), *((1, k) for k in range(5))], 2),
    "some were walked again": ([(0, 0), (0, 1), (1, 0), (1, 1), (0, 4)], 3),
    "apart": ([(0, 0), (1, 1), (0, 2), (1, 0), (0, 4)], 5),
    "the rest as one": ([(0, 0), (0, 1), (1, 0)], 2),
}


@pytest.mark.parametrize("order, count", ORDERS.values(), ids=ORDERS)
def test_runs_are_few_and_hold_every_segment(order, count):
    found = list(runs(order))
    assert len(found) == count
    assert [(r.group, r.place + i) for r in found for i in range(r.segments)] == order


def test_what_is_no_segment_is_no_run_of_a_group():
    order = [None, None, (0, 1), (0, 2), None, (2, 0), (0, 3)]
    assert list(runs(order)) == [
        Run(-1, 0, 2), Run(0, 1, 2), Run(-1, 0, 1), Run(2, 0, 1), Run(0, 3, 1)
    ]  # fmt: skip


def test_followers():
    order, _ = ORDERS["some were walked again"]
    assert followers(order, [5, 2]) == [
        # of windows 0 to 4, where 2 and 3 are in use no longer, and nothing is behind the last
        [Run(0, 1, 1), Run(1, 0, 1), Run(-1, 0, 3)],
        [Run(1, 1, 1), Run(0, 4, 1)],
    ]


@pytest.mark.parametrize("order, _", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("B", [1, 3])
def test_what_lies_in_segments_is_joined_in_the_order_of_time(order, _, B):
    torch.manual_seed(0)
    sizes = [1 + max([p for g, p in order if g == i]) for i in range(1 + max(order)[0])]
    lengths = [(3, 2), (4, 1), (1, 1)]
    groups = [[torch.randn(steps, n * B, 2) for steps in lengths[i]] for i, n in enumerate(sizes)]
    wanted = []
    for group, place in order:
        wanted += [piece[:, place * B : (place + 1) * B] for piece in groups[group]]
    assert torch.equal(joined(order, groups, B), torch.cat(wanted))
