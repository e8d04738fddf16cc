"""A few seeds of `at_random.py`, every transform of every kind among them, and whether it sees."""

import pytest
import torch
from support.transformed import FUNCTIONS, TRANSFORMS, Case

from bppsa_lightning.ops import _member_gradients, _scan_transforms

TOLERANCE = 1e-10


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_transform_gives_what_loops_give(kind, transform):
    case = Case(sum(map(ord, transform)), kind)
    case.transform = transform
    assert case.error() <= TOLERANCE, case.name


@pytest.mark.parametrize("seed", range(12))
def test_random_cases(seed):
    case = Case(seed)
    assert case.error() <= TOLERANCE, case.name


def test_gradients_of_another_member_are_seen(monkeypatch):
    right = _member_gradients._product
    monkeypatch.setattr(_member_gradients, "_product", lambda *a: right(*a).roll(1, 0))
    case = Case(3, "layer")
    case.transform, case.V = "vmap(grad)", 2
    assert case.error() > TOLERANCE


def test_a_tangent_that_is_left_out_is_seen(monkeypatch):
    nothing = lambda jacobians, vectors, transposed: torch.zeros_like(vectors)  # noqa: E731
    monkeypatch.setattr(_scan_transforms, "_applied", nothing)
    case = Case(3, "scan")
    case.transform = "jvp"
    assert case.error() > TOLERANCE
