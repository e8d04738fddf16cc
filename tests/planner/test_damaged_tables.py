"""The user's tables, damaged in any place: taken if plans can be made of them, else ignored."""

import itertools
import json
import warnings

import pytest
import torch
from support.damage import damaged, places_in

from bppsa_lightning import planner
from bppsa_lightning.planner import (
    choose,
    cost_cuda,
    cost_pruned,
    gpu_tables,
    hand_over,
    machine,
    ratios,
    tables,
)
from bppsa_lightning.planner.request import MODES
from bppsa_lightning.planner.tables import form

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
CELLS = "rnn_tanh", "gru", "lstm"
WRONG = [..., None, True, "x", [], {}, -1.0, 0, 1e-30, 1e30, 1e999, 10**400, 3]


@pytest.fixture
def own(monkeypatch, tmp_path):
    """Writes the user's table of this CPU, which is read by the next that asks."""
    monkeypatch.setenv(tables.FOLDER, str(tmp_path))
    monkeypatch.delenv(machine.TABLE, raising=False)
    this = machine.this_cpu()

    def write(table):
        tables.user_path(this).write_text(json.dumps(table | {"machine": dict(this)}))
        machine.forget()

    yield write
    monkeypatch.undo()
    machine.forget()


def plan_on_cpu():
    """A plan of each kind, of the smallest and of the largest sizes."""
    for T, B, H in ((1, 1, 1), (100, 16, 20), (10**5, 1, 600)):
        for cell in (*CELLS, planner.DENSE, planner.DIAGONAL):
            assert planner.plan(planner.Request(cell, T, B, H, CPU)).reason
        for cell in CELLS:
            assert planner.step_seconds(cell, H, H, B) > 0
            for steps in (None, T * B, T):
                hand_over.pytorch_is_faster(cell, T, B, H, steps)
        for cell, mode in itertools.product(CELLS, MODES):
            ratios.pytorch_is_faster(cell, True, mode, T, B, H)
        for cell in CELLS:
            ratios.pytorch_is_faster(cell, False, "inference", T, B, H)
    for nnz in (1, 36864):
        request = cost_pruned.PrunedRequest((64, 64, 3, 3), nnz, 64, 8, 8, 8, (8, 8))
        assert cost_pruned.choose(request).reason


def places(table, *sections):
    """A few of each list are as good as all of them."""
    for place in places_in({name: table[name] for name in sections}):
        if not any(isinstance(key, int) and key > 2 for key in place):
            yield place


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:8])
def test_of_a_cpu(own, wrong):
    whole = tables.shipped()[machine.FULL]
    sections = [name for name in whole if name not in ("format", "machine", "measured")]
    seen = set()
    for place in places(whole, *sections):
        own(damaged(whole, place, wrong))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            machine.cpu()
        assert len(said) <= 1 and all("it is damaged" in str(w.message) for w in said)
        seen.add(bool(said))
        if not said:
            plan_on_cpu()
    assert True in seen


def test_of_a_cpu_without_damage(own):
    own(tables.shipped()[machine.FULL])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_on_cpu()


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:8])
def test_of_a_gpu(wrong):
    whole, seen = tables.shipped()["nvidia_h200"], set()
    for place in places(whole, "kernels", "recurrent"):
        found = damaged(whole, place, wrong)
        seen.add(damage := form.difference(found, gpu_tables._LIKE))
        if damage:
            continue
        table = gpu_tables.GpuTable.of(found)
        for cell in CELLS:
            for size in ((1, 1, 8), (1000, 16, 20), (10**5, 256, 256)):
                request = planner.Request(cell, *size, CUDA)
                assert choose.plan_on_cuda(request, 132, True, table).reason
                cost_cuda.fallback_reason(cost_cuda.size_of(request, 132, True, table))
    assert len(seen) > 3
