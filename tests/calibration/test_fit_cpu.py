"""From measured seconds to thresholds and coefficients.

T steps, B batch, H hidden.
"""

import itertools

import numpy as np
import pytest

from bppsa_lightning.calibration import fit_cpu, least_squares
from bppsa_lightning.calibration.fit_cpu import MARGIN, Point, Scanned, Size, least_steps, point
from bppsa_lightning.planner import Plan, cost_recurrent


def points(*ratios):
    """(T, PyTorch's time over ours), …"""
    return [point(T, 1.0, ratio) for T, ratio in ratios]


def test_the_least_steps_that_pay():
    assert least_steps(points((1, 2.0), (10, 3.0))) == 1
    assert least_steps(points((1, 0.5), (10, 0.9), (100, 1.0))) is None
    assert least_steps(points((10, 3.0), (1, 0.9))) == 2
    # Halfway between 1/2 and 2 (times the margin) on logarithmic scales.
    assert least_steps(points((10, MARGIN / 2), (1000, MARGIN * 2))) == 100
    # The last one that does not pay counts.
    assert 30 < least_steps(points((1, 2.0), (10, 2.0), (30, 0.9), (100, 2.0))) <= 100
    # Where only choices are known.
    assert 12 < least_steps([Point(10, False, None), Point(100, True, 50.0)]) < 16
    assert 50 < least_steps([Point(10, False, None), Point(100, True, MARGIN + 0.01)]) <= 100


def test_as_fast_is_not_enough():
    assert not point(10, 1.0, MARGIN - 0.01).pays and point(10, 1.0, MARGIN + 0.01).pays


def test_the_coefficients_that_made_the_times_are_found():
    wanted = [2e-5, 2e-8, 3e-8, 7e-11, 2e-7, 4e-11, 9e-7]
    rows = []
    for cell, T, B, H in itertools.product(("GRU", "RNN"), (10, 100, 1000), (1, 2, 16), (4, 20)):
        for plan in (Plan("linear"), Plan("chunked", chunk=5), Plan("blelloch", levels=3)):
            scale = 2.0 if cell == "GRU" else 1.0
            terms = cost_recurrent.terms(plan, T, B, H, 2)
            seconds = scale * sum(a * b for a, b in zip(terms, wanted))
            rows.append(Scanned(Size(cell, T, B, H), plan, seconds))
    found = fit_cpu.scan(rows, 2)
    assert found["threads"] == 2
    assert found["RNN"] == pytest.approx(wanted, rel=2e-3)
    assert found["GRU"] == pytest.approx([2 * c for c in wanted], rel=2e-3)


def test_coefficients_are_never_negative_and_the_best_such():
    optimize = pytest.importorskip("scipy.optimize")
    generator = np.random.default_rng(0)
    for _ in range(100):
        A = generator.normal(size=(20, 6)) * generator.lognormal(size=6, sigma=3)
        b = generator.normal(size=20)
        found, error = least_squares.nnls(A, b)
        assert (found >= 0).all()
        assert error == pytest.approx(optimize.nnls(A, b)[1], rel=1e-9)
