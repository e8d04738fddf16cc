"""What scans have learned, by names that another process gives them too."""

from functools import partial

import pytest
import torch
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.steps import Scans, known, scans_of
from bppsa_lightning.windows import memory


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.scale = nn.GRUCell(3, 4), nn.Parameter(torch.ones(4))

    def step(self, h, x):
        h = self.cell(x, h)
        return h, h

    def forward(self, xs, step=None):
        h = xs.new_zeros(xs.shape[1], 4)
        return bl.scan(step or self.step, h, xs, algorithm="speculative")[1]


@pytest.fixture
def scans():
    scans = Scans()
    yield scans
    scans.end()
    assert not known.observers


def decaying(weight, by, h, x):
    h = by * h + weight * x[:, :1]
    return h, h


NAME = "bl.scan(Model.step of cell.weight_ih float32[4] float32[3])"


def test_a_scan_is_named_by_what_another_process_knows(scans):
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = Model()
        scans.begin(model)
        for by in (0.5, 0.7):
            model(torch.randn(400, 2, 3), partial(decaying, model.scale, by))
        model(torch.randn(400, 2, 3))
        model.double()(torch.randn(400, 2, 3, dtype=torch.float64))
        found.append(list(scans.state_dict()))
        scans.end()
    decays = [f"bl.scan(decaying of scale {by} float32[4] float32[3])" for by in (0.5, 0.7)]
    assert found[0] == found[1] == [*decays, NAME, NAME.replace("32", "64")]


def test_scans_of_one_name_are_counted(scans):
    model = Model()
    scans.begin(model)
    model(torch.randn(400, 2, 3), lambda h, x: (model.cell(x, h),) * 2)
    model(torch.randn(400, 2, 3), lambda h, x: (model.cell(x, 0.5 * h),) * 2)
    first, second = scans.state_dict()
    assert second == f"{first} #2"


def test_loops_have_learned_nothing(scans):
    model = Model()
    scans.begin(model)
    bl.scan(model.step, torch.zeros(2, 4), torch.randn(300, 2, 3), algorithm="linear")
    bl.scan(model.step, torch.zeros(2, 4), torch.randn(300, 2, 3), algorithm="chunked")
    assert scans.state_dict() == {}


def learned(scans, calls=3):
    model = Model()
    scans.begin(model)
    for _ in range(calls):
        model(torch.randn(400, 2, 3)).sum().backward()
    state = scans.state_dict()
    scans.end()
    return state


def test_a_scan_goes_on_as_it_was_saved_even_if_it_has_been_called(scans):
    state = learned(scans)
    for called in (False, True):
        model = Model()
        scans.load_state_dict(state | {"an.lstm": {"0": {}}})
        scans.begin(model)
        if called:
            model(torch.randn(400, 2, 3))
            scans.load_state_dict(state)
        model(torch.randn(400, 2, 3)).sum().backward()
        [scan] = scans_of(model.parameters())
        assert scan.memory._rest == state[NAME]["rest"] - 1
        scans.end()


def test_what_has_not_been_called_again_is_kept(scans):
    state = learned(scans)
    scans.load_state_dict(state)
    scans.begin(Model())
    assert scans.state_dict() == state


def test_without_a_state_a_scan_is_as_new(scans):
    model = Model()
    scans.begin(model)
    model(torch.randn(400, 2, 3)).sum().backward()
    [scan] = scans_of(model.parameters())
    assert scan.memory.levels is not None
    scans.load_state_dict({"bl.scan(another)": {}})
    assert scan.memory.levels is None


def test_what_is_called_after_the_end_is_nobody_s(scans):
    model = Model()
    scans.begin(model)
    scans.end()
    model(torch.randn(400, 2, 3))
    assert scans.state_dict() == {}


class Decoder:
    """Made in each forward."""

    def __init__(self, cell):
        self.cell = cell

    def step(self, h, x):
        h = self.cell(x, h)
        return h, h


def annealed(model, i):
    return partial(decaying, model.scale, 0.5 + i / 100)


def of_an_object(model, i):
    return Decoder(model.cell).step


@pytest.mark.parametrize("step_of", [annealed, of_an_object])
def test_steps_that_are_made_anew_in_each_forward_are_forgotten(scans, step_of):
    model, steps = Model(), []
    scans.begin(model)
    for i in range(12):
        steps.append(step_of(model, i))  # (each of an id of its own)
        model(torch.randn(400, 2, 3), steps[-1])
        model(torch.randn(400, 2, 3))  # one that is used all the time
    found = scans_of(model.parameters())
    last = [scan for scan in found if scan.memory.calls == 1]
    assert len(last) == 8 and len(found) == 9 and sorted(s.memory.calls for s in found)[-1] == 12
    assert len(scans.state_dict()) == 9
    model(torch.randn(400, 2, 3), steps[-1])
    assert last[-1].memory.calls == 2


def test_another_thread_may_call_the_same_step_meanwhile(monkeypatch):
    model = Model()
    model(torch.randn(400, 2, 3))
    [scan] = scans_of(model.parameters())
    keep = memory._keep

    def keep_meanwhile(*args):
        keep(*args)
        scan.memory._learn(scan.memory.report)  # as another call does first

    monkeypatch.setattr(memory, "_keep", keep_meanwhile)
    model(torch.randn(500, 2, 3)).sum().backward()
    assert scan.cut is not None
