"""On a GPU each wait of the host for the device costs time: one forward, one backward.

Counted on the CPU, with the verdicts that a GPU takes, and with tensors that are nowhere.
"""

import pytest
import torch
from support.waits import waits
from support.windows import leaves
from torch import nn

from bppsa_lightning import ops
from bppsa_lightning.recurrent.engines import LayerEngine, PytorchEngine
from bppsa_lightning.steps.engine import StepEngine
from bppsa_lightning.steps.trees import flatten
from bppsa_lightning.windows import Cut, Levels, Report, look, speculate

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}


def waits_of(engine, x, state, cut, levels, answer=None):
    """Of a forward and of a backward, and the report."""
    report = Report()
    with waits(answer) as forward:
        [y], last = speculate(engine, [x], state, cut, levels, report)
    with waits(not answer) as backward:  # gradients vanish where windows have met
        torch.autograd.backward([y, *last], [torch.ones_like(t) for t in (y, *last)])
    assert y.shape[:2] == x.shape[:2]
    return forward, backward, report


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("kind", [LayerEngine, PytorchEngine])
@pytest.mark.parametrize("T", [800, 803])
def test_windows_that_meet_are_waited_for_once(cell, kind, T, monkeypatch):
    monkeypatch.setattr(ops, "states_met_is_for", lambda *_: False)
    torch.manual_seed(0)
    engine = kind(cell, [*CELLS[cell](3, 12).parameters()])
    x = torch.randn(T, 2, 3, requires_grad=True)
    state = leaves([torch.randn(2, 12)] * (2 if cell == "lstm" else 1))
    seen = look(engine, [x.detach()], [s.detach() for s in state], 100)
    cut = Cut(T, 5, T // 5, seen.warm)
    forward, backward, report = waits_of(engine, x, state, cut, seen.levels)
    assert (report.missed, report.backward_passes) == (0, 1)
    assert forward == {"levels.py": 1} and backward == {"backward.py": 1}


@pytest.mark.parametrize("T", [40, 43])
@pytest.mark.parametrize("meet", [True, False])
def test_nothing_is_on_another_device_than_the_sequence(T, meet):
    """Tensors of the device "meta" have no numbers; those of the CPU do not go with them."""
    step = nn.GRUCell(3, 4, device="meta")
    tree = flatten(torch.zeros(1))[1]
    engine = StepEngine(lambda h, x: (step(x, h),) * 2, tree, tree, [*step.parameters()])
    x = torch.zeros(T, 2, 3, device="meta", requires_grad=True)
    levels = Levels((torch.zeros(4, device="meta"),), (1.0,))
    state = [torch.zeros(2, 4, device="meta", requires_grad=True)]
    forward, backward, _ = waits_of(engine, x, state, Cut(T, 4, 10, 3), levels, answer=meet)
    assert forward == ({"levels.py": 1} if meet else {"levels.py": 1, "forward.py": 1})
    assert {p.grad.device.type for p in (x, *state, *step.parameters())} == {"meta"}
