"""torch.jit of a model that holds an attached layer: PyTorch's own, to the last bit."""

import copy
import pickle

import pytest
import torch
from support.overridden_layers import Doubled
from support.recurrent_modules import CELLS, tensor
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning._replacement import replacement_of

pytestmark = [
    pytest.mark.usefixtures("accelerate_everything"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
T, B, I, H = 5, 2, 3, 4


class Model(nn.Module):
    def __init__(self, cell):
        super().__init__()
        kind, settings = CELLS[cell]
        self.layer, self.head = kind(I, H, **settings), nn.Linear(H, 2)

    def forward(self, x):
        output, _ = self.layer(x)
        return self.head(output)


def twins(cell):
    torch.manual_seed(0)
    stock = Model(cell).double()
    model = copy.deepcopy(stock)
    [chain] = bl.attach(model)
    return stock, model, chain


@pytest.mark.parametrize("cell", ["RNN-tanh", "GRU", "LSTM"])
def test_a_scripted_model_is_pytorchs(cell, tmp_path):
    stock, model, chain = twins(cell)
    scripted = torch.jit.script(model)
    assert "bppsa" not in str(scripted.inlined_graph)
    torch.jit.save(scripted, tmp_path / "model.pt")
    for found in (scripted, torch.jit.load(tmp_path / "model.pt")):
        assert torch.equal(found(tensor(T, B, I)), stock(tensor(T, B, I)))
    assert replacement_of(model.layer, bl.Chain) is chain and chain.calls == 0
    for calls in (1, 2):  # the model itself is scanned as before
        torch.testing.assert_close(model(tensor(T, B, I)), stock(tensor(T, B, I)))
        assert (chain.calls, chain.fallback_calls) == (calls, 0)


def test_a_scripted_layer_is_pytorchs():
    stock, model, chain = twins("LSTM")
    found, _ = torch.jit.script(model.layer).forward__0(tensor(T, B, I))
    assert torch.equal(found, stock.layer(tensor(T, B, I))[0])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:The tensor attributes .*_flat_weights:UserWarning")
def test_a_subclass_that_overrides_forward_is_compiled_as_pytorch_would():
    torch.manual_seed(0)
    stock = Model("LSTM").double()
    stock.layer = Doubled(I, H).double()
    model = copy.deepcopy(stock)
    [chain] = bl.attach(model)
    with torch.no_grad():
        traced = torch.jit.trace(model, (tensor(T, B, I),), check_trace=False)
    assert "bppsa" not in str(traced.inlined_graph)
    assert torch.equal(traced(tensor(T, B, I)), stock(tensor(T, B, I)))
    assert (chain.calls, chain.fallback_calls) == (0, 1)
    for layer in (stock, model):  # super() is more than torch.jit.script can compile
        with pytest.raises(RuntimeError, match="has no attribute or method 'forward'"):
            torch.jit.script(layer)
    program = torch.export.export(model, (tensor(T, B, I),))
    torch.testing.assert_close(program.module()(tensor(T, B, I)), stock(tensor(T, B, I)))


def test_detach_after_scripting_leaves_nothing_behind():
    stock, model, chain = twins("GRU")
    for called in (False, True):
        bl.attach(model)
        torch.jit.script(model)
        if called:
            model(tensor(T, B, I))
        bl.detach(model)
        assert not {"forward", "_super_forward", "__prepare_scriptable__"} & {*model.layer.__dict__}
        assert model.layer._compiled_call_impl is None
        assert torch.equal(model(tensor(T, B, I)), stock(tensor(T, B, I)))


def test_scripting_and_attaching_twice():
    stock, model, chain = twins("GRU")
    torch.jit.script(model)
    torch.jit.script(model)
    assert bl.attach(model) == [chain] and "_super_forward" not in model.layer.__dict__
    model(tensor(T, B, I))
    assert chain.calls == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("scripted", [False, True])
def test_a_copy_is_scanned_on_its_own(copied, scripted):
    _, model, chain = twins("GRU")
    if scripted:
        torch.jit.script(model)
    twin = copied(model)
    own = replacement_of(twin.layer, bl.Chain)
    assert own is not chain and own.module is twin.layer
    twin(tensor(T, B, I))
    assert (own.calls, chain.calls) == (1, 0)
    torch.jit.script(twin)
    twin(tensor(T, B, I))
    assert (own.calls, chain.calls) == (2, 0)
