"""A dozen seeds of each kind of `at_random.py`, and whether it sees what it is there for."""

from collections import Counter
from functools import partial

import pytest
import torch
from support.judged import Call, judge
from support.random_scans import RandomScan
from windows import at_random

from bppsa_lightning.recurrent.in_place import KernelsInPlace
from bppsa_lightning.windows import backward, forward

# Of short cases; the first of each kind have windows that miss. In seed 77 a thousand parts of a
# parameter's gradient add up.
SEEDS = {
    "scan": (0, 2, 26, 8, 16, 34, 35, 36, 39, 40, 44, 48, 77),
    "layers": (17, 19, 29, 4, 8, 20, 36, 38, 41, 42, 47, 49),
}
CASES = [(kind, seed) for kind, seeds in SEEDS.items() for seed in seeds]
LONGEST = 700


def wrong(kind, seeds):
    """The names of results of more than a few numbers that are further off than any walk."""
    cases = [at_random.KINDS[kind](seed, LONGEST) for seed in seeds]
    flags = [flag for case in cases for flag in at_random.run(case, Counter())]
    return {flag.name for flag in flags if flag.wrong and not flag.few}


@pytest.mark.parametrize("kind, seed", CASES)
def test_random_recurrences_are_as_exact_as_walks(kind, seed):
    assert not wrong(kind, [seed])


def believe_all(monkeypatch, name):
    """Windows that are walked where they lie are taken to have met."""
    right = getattr(KernelsInPlace, name)

    def blind(self, *arguments):
        before, behind, met = right(self, *arguments)
        return before, behind, [True] * len(met)

    monkeypatch.setattr(KernelsInPlace, name, blind)


def test_long_products_of_like_signs_are_as_exact_as_walks():
    """Of the scan of Jacobians: a parameter's gradient is a product over steps and samples."""
    flags = at_random.run(RandomScan(5243, 5000), Counter())
    assert not any(flag.wrong for flag in flags)


@pytest.mark.parametrize("kind", SEEDS)
def test_windows_that_are_not_verified_are_wrong(kind, monkeypatch):
    monkeypatch.setattr(forward, "_missed", lambda *_: [])
    believe_all(monkeypatch, "walk_windows")
    assert any(not name.startswith("gradient") for name in wrong(kind, SEEDS[kind][:1]))


@pytest.mark.parametrize("kind, seed", [("scan", 26), ("layers", 41)])
def test_gradients_that_are_not_handed_on_are_wrong(kind, seed, monkeypatch):
    nothing = lambda self, leaving, alive: {}  # noqa: E731
    monkeypatch.setattr(backward._Backward, "_hand_on", nothing)
    believe_all(monkeypatch, "pull_windows")
    names = wrong(kind, [seed])
    assert names
    assert all(name.startswith("gradient") for name in names)


@pytest.mark.parametrize(
    "error, dtype, numbers, others, flags",
    [
        (2e-6, torch.float32, 5, 1e-6, []),  # twice the walk's
        (9e-6, torch.float32, 5, 1e-6, [(True, False)]),
        (9e-6, torch.float32, 3, 1e-6, [(True, True)]),
        (9e-6, torch.float32, 5, 9e-6, [(False, False)]),  # as some walks
        (float("nan"), torch.float32, 5, 1e-6, [(True, False)]),
        (5e-11, torch.float64, 5, 0.0, []),
        (5e-10, torch.float64, 5, 0.0, [(True, False)]),
    ],
)
def test_what_is_wrong_and_what_is_as_other_walks(error, dtype, numbers, others, flags):
    ones = torch.ones(numbers, dtype=torch.float64)

    def walk(of, seed):
        if of == torch.float64:
            return {"y": ones + (0 if seed is None else others)}
        return {"y": ones + (1e-6 if seed in (None, 1) else others)}

    judgement = judge(Call({"y": ones + error}, walk, partial(walk, dtype), []), dtype)
    assert [(flag.wrong, flag.few) for flag in judgement.flags] == flags
    if dtype == torch.float32:
        assert judge(Call({"y": ones}, walk, partial(walk, dtype), []), dtype).other_way == (0, 0)


def test_gradients_whose_squares_overflow_are_compared():
    """As those of chaotic recurrences in float64."""
    large = torch.full((5,), 1e212, dtype=torch.float64)
    for error, wrong in ((0.0, False), (1e-9, True)):
        found = {"y": large * (1 + error)}
        judgement = judge(
            Call(found, lambda *_: {"y": large}, lambda _: {"y": large}, []), large.dtype
        )
        assert [flag.wrong for flag in judgement.flags] == [True] * wrong


def test_a_walk_that_is_further_off_is_counted():
    ones = torch.ones(5, dtype=torch.float64)

    def walk(of, seed):
        return {"y": ones + (5e-6 if of == torch.float32 and seed is None else 0)}

    assert judge(
        Call({"y": ones}, walk, partial(walk, torch.float32), []), torch.float32
    ).other_way == (1, 0)


def test_a_seed_is_a_case_by_itself():
    """Whatever ran before it."""
    found = []
    for before in ([], [1]):
        for seed in (*before, 0):
            case = at_random.RandomLayer(seed, 100)
            calls = list(case.calls())
        found.append([call.found for call in calls])
    for a, b in zip(*found):
        assert all(torch.equal(a[name], b[name]) for name in a)
