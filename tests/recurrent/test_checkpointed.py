"""torch.utils.checkpoint around an attached layer: what a look at it saves is not counted."""

import copy

import pytest
import torch
from support.cases import relative_error
from torch import nn
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl
from bppsa_lightning.windows import memory


@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("algorithm", ["auto", "speculative", "linear"])
def test_a_checkpoint_around_a_layer(cell, algorithm):
    torch.manual_seed(0)
    module, x = cell(3, 8), torch.randn(3000, 1, 3)
    bl.attach(module, algorithm)
    module(x)[0].square().sum().backward()
    wanted = {name: p.grad.clone() for name, p in module.named_parameters()}
    for _ in range(3):
        bl.detach(module)
        bl.attach(module, algorithm)  # which has learned nothing yet
        for _ in range(2):
            module.zero_grad()
            checkpoint(lambda x: module(x)[0], x, use_reentrant=False).square().sum().backward()
            for name, p in module.named_parameters():
                assert relative_error(p.grad, wanted[name]) < 1e-5


@pytest.fixture
def short_warm_ups(monkeypatch):
    """Looks that find too little: windows do not meet, and it is learned that they do not."""
    look = memory.look
    monkeypatch.setattr(memory, "look", lambda *given: look(*given)._replace(warm=3))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM])
def test_what_is_learned_in_between_does_not_change_what_is_walked_again(
    cell, B, use_reentrant, short_warm_ups
):
    torch.manual_seed(0)
    module = cell(3, 8)
    stock = copy.deepcopy(module)
    bl.attach(module, "speculative")
    x = torch.randn(400, B, 3, requires_grad=True)
    stock(x)[0].square().sum().backward()
    walked = []
    for _ in range(11):  # windows, then eight walks, then windows again
        module.zero_grad()
        output = checkpoint(lambda x: module(x)[0], x, use_reentrant=use_reentrant)
        output.square().sum().backward()
        walked.append("walked: " in bl.explain(module))
        for ours, theirs in zip(module.parameters(), stock.parameters(), strict=True):
            assert relative_error(ours.grad, theirs.grad) < 1e-5
    assert walked[:2] == [False, True] and False in walked[2:]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_scan_in_windows_is_walked_again_in_windows(use_reentrant, short_warm_ups):
    torch.manual_seed(0)
    cell, x, h = nn.GRUCell(3, 8), torch.randn(400, 2, 3, requires_grad=True), torch.zeros(2, 8)

    def step(h, x):
        h = torch.tanh(cell(x, h) + 0.3 * h.sin())
        return h, h

    bl.scan(step, h, x, algorithm="linear")[1].square().sum().backward()
    wanted = [p.grad.clone() for p in cell.parameters()]
    for _ in range(3):
        cell.zero_grad()
        checkpoint(
            lambda x: bl.scan(step, h, x, algorithm="speculative")[1],
            x,
            use_reentrant=use_reentrant,
        ).square().sum().backward()
        for p, true in zip(cell.parameters(), wanted, strict=True):
            assert relative_error(p.grad, true) < 1e-4
