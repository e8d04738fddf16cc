"""What all tests share: what is quick, and how much of the planner a test wants.

The planner is the one that users get: calls that PyTorch computes faster go to PyTorch. A test of
results at small sizes asks for `accelerate_everything` by name.
"""

import os
from collections import defaultdict
from pathlib import Path

import pytest
from support.quick import LONG, ONE_IS_QUICK, SLOW

from bppsa_lightning import planner
from bppsa_lightning.planner import cost_pruned

HERE = Path(__file__).parent
CASES = 3  # of a parametrised test, in `make quick`


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    """Marks as slow what is, and all cases of a test but a few; long tests come first."""
    functions = defaultdict(list)
    for item in items:
        if {name_of(item), function_of(item)} & {*SLOW}:
            item.add_marker("slow")
        if not item.get_closest_marker("gpu"):
            functions[item.path, item.originalname].append(item)
    for cases in functions.values():
        for item in {*cases} - {*covering_cases(cases)}:
            item.add_marker("another_case")
        fast = [case for case in cases if not case.get_closest_marker("slow")]
        for item in {*fast} - {*quick_cases(fast)}:
            item.add_marker("slow")
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(name_of(item), len(order)))


def name_of(item):
    return item.path.relative_to(HERE).as_posix()


def function_of(item):
    return f"{name_of(item)}::{item.originalname}"


def quick_cases(cases):
    """At most CASES of a parametrised test; of one whose cases are not quick a single one."""
    if not cases or not hasattr(cases[0], "callspec"):
        return cases
    return cases[:1] if function_of(cases[0]) in ONE_IS_QUICK else covering_cases(cases)[:CASES]


def covering_cases(cases):
    """Cases of a parametrised test in which each parameter has each of its values."""
    if not hasattr(cases[0], "callspec"):
        return cases
    values = {
        case: {(name, id(value)) for name, value in case.callspec.params.items()} for case in cases
    }
    left = set().union(*values.values())
    chosen = []
    while left:
        chosen.append(max(values, key=lambda case: len(values[case] & left)))
        left -= values[chosen[-1]]
    return chosen


@pytest.fixture(scope="session", autouse=True)
def wandb_keeps_its_copies_with_the_tests(tmp_path_factory):
    """Not beside those of the experiments that someone runs here."""
    os.environ["WANDB_DATA_DIR"] = str(tmp_path_factory.mktemp("wandb"))


@pytest.fixture
def accelerate_everything(monkeypatch):
    """No call is left to PyTorch for its speed.

    The planner is asked all the same, so that a question it cannot answer fails here as well.
    """
    ask = planner.fallback_reason

    def accelerate(request):
        ask(request)

    monkeypatch.setattr(planner, "fallback_reason", accelerate)
    monkeypatch.setattr(planner, "fallback_reason_when_compiled", lambda *_: None)


@pytest.fixture
def every_layer_is_sparse(monkeypatch):
    """Pruned layers run sparse whatever their size: results count, not which way is faster."""
    plan = cost_pruned.PrunedPlan(True, 1.0, 2.0, "for the test")
    monkeypatch.setattr(cost_pruned, "choose", lambda request: plan)


@pytest.fixture(scope="session", autouse=True)
def nobody_has_calibrated(tmp_path_factory):
    """Plans are those of one shipped table, whatever this machine is or was measured to be."""
    os.environ["BPPSA_TABLES"] = str(tmp_path_factory.mktemp("tables"))
    os.environ["BPPSA_TABLE"] = "intel_xeon_2"
