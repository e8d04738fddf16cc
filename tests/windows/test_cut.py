"""Where sequences are cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bppsa_lightning.windows import Cut, choose_cut
from bppsa_lightning.windows.cut import in_time, side_by_side


@given(
    T=st.integers(2, 5000),
    B=st.integers(1, 64),
    warm=st.integers(1, 500),
    rows=st.floats(1, 1e4),
    call=st.integers(0, 1000),
)
def test_a_cut_covers_all_steps_once(T, B, warm, rows, call):
    cut = choose_cut(T, B, warm, lambda n: 1 + n / rows, call)
    if cut is None:
        return
    assert cut.T == T
    assert cut.windows >= 2
    assert 1 <= cut.warm <= cut.span
    assert 0 <= cut.head < cut.windows
    steps = [*range(cut.head)]
    for start in cut.starts:
        steps += range(start, start + cut.span)
    assert steps == [*range(T)]
    assert cut.starts[1] >= cut.warm  # no warm-up reaches before the first step


def test_only_what_gains_is_cut():
    cost, steep = (lambda n: 1 + n / 500), (lambda n: 1 + n)
    assert choose_cut(4096, 1, 64, cost, gain=1.0) is not None
    assert choose_cut(4096, 1, 64, cost, gain=1000) is None
    # A second window would be shorter than its warm-up.
    assert choose_cut(100, 1, 64, cost, gain=0.0) is None
    # So many samples that windows are no cheaper.
    assert choose_cut(4096, 4096, 64, steep, gain=1.0) is None
    assert choose_cut(4096, 1, 64, cost, call=10_000, gain=1.0) is None


def test_any_that_fits_is_cut_where_windows_were_asked_for():
    assert choose_cut(4096, 4096, 64, lambda n: 1 + n, gain=0.0) is not None


def test_the_cheapest_cut_is_chosen():
    """Steps of up to 16 samples cost the same: more windows than those are no gain."""
    cut = choose_cut(4096, 1, 64, lambda n: max(n, 16))
    assert (cut.windows, cut.span) == (16, 256)


def test_of_cuts_that_are_about_as_good_the_one_with_the_fewest_windows_is_chosen():
    cost = lambda n: 16 + n  # noqa: E731
    taken = lambda cut: (cut.span + cut.warm) * cost(cut.windows) + cut.head * cost(1)  # noqa: E731
    best, few = choose_cut(4096, 1, 1, cost), choose_cut(4096, 1, 1, cost, near=1.15)
    assert best.windows > 100
    assert few.windows < 80
    assert taken(best) < taken(few) <= 1.15 * taken(best)


@pytest.mark.parametrize("B, multiple", [(1, 8), (2, 4), (3, 8), (8, 1)])
def test_samples_are_walked_in_multiples_where_they_fit(B, multiple):
    cut = choose_cut(4096, B, 64, lambda n: 16 + n, rows=8)
    assert cut.windows % multiple == 0
    few = choose_cut(300, 1, 64, lambda n: 16 + n, gain=0.0, rows=8)
    assert 2 <= few.windows <= 4  # no eight windows fit


@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("starts", [(0, 7, 14), (2, 4, 6), (5,), (0, 1, 9), (12, 3)])
def test_parts_side_by_side(B, starts):
    x = torch.arange(20 * B * 4.0).reshape(20, B, 4)
    for view in (x, x.repeat_interleave(2, 0)[::2], x.transpose(0, 1).contiguous().transpose(0, 1)):
        parts = side_by_side(view, starts, 6)
        assert parts.shape == (6, len(starts) * B, 4)
        for k, start in enumerate(starts):
            assert torch.equal(parts[:, k * B : (k + 1) * B], x[start : start + 6])
        back = in_time(parts, len(starts))
        assert torch.equal(back[-1], x[starts[-1] : starts[-1] + 6])


def test_depth():
    assert Cut(1000, 16, 62, 20).depth == 8 + 20 + 62
