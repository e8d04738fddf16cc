"""attach and detach without Lightning: what they find, what they change, what they give back."""

import inspect
import re

import pytest
import torch
from support.helpers import B, H, I, T, assert_close, assert_identical, is_attached
from support.rnn_twins import EXACT, LOSSES, Model, step, tensor, twins
from torch import nn

import bppsa_lightning as bl

pytestmark = pytest.mark.usefixtures("accelerate_everything")


CONTAINERS = {
    "itself": (lambda: nn.RNN(I, H), [""]),
    "a model": (Model, ["rnn"]),
    "a model in a model": (lambda: nn.ModuleDict({"inner": Model()}), ["inner.rnn"]),
    "ModuleList": (lambda: nn.ModuleList([nn.RNN(I, H), nn.RNN(H, H)]), ["0", "1"]),
    "ModuleDict": (lambda: nn.ModuleDict({"a": nn.RNN(I, H), "b": nn.Linear(2, 2)}), ["a"]),
    "Sequential": (lambda: nn.Sequential(nn.Linear(I, I), nn.RNN(I, H)), ["1"]),
    "no recurrence": (lambda: nn.Linear(2, 2), []),
    "GRUCell and RNN": (lambda: nn.ModuleList([nn.GRUCell(I, H), nn.RNN(I, H)]), ["1"]),
}


@pytest.mark.parametrize("where", CONTAINERS)
def test_attach_finds_chains_anywhere(where):
    build, names = CONTAINERS[where]
    model = build()
    chains = bl.attach(model, "chunked")
    assert isinstance(chains, list)
    assert [chain.name for chain in chains] == names
    for chain in chains:
        assert isinstance(chain, bl.Chain)
        assert chain.module is model.get_submodule(chain.name)
        assert chain.cell == "RNN-tanh" and chain.algorithm == "chunked"
        assert is_attached(chain.module)
        assert chain.name in repr(chain)
    text = bl.explain(model)
    counted = f"{len(names)} of \\d+ recurrent layers" if names else "nothing"
    assert re.search(f": {counted} accelerated\n", text)
    assert all((name or "(itself)") in text for name in names)
    bl.detach(model)
    assert not any(is_attached(module) for module in model.modules())


def test_a_module_with_two_names_is_one_chain():
    rnn = nn.RNN(I, H)
    assert len(bl.attach(nn.ModuleDict({"a": rnn, "b": rnn}))) == 1


def test_attaching_twice_is_attaching_once_with_the_newer_algorithm():
    model = Model()
    own = inspect.getattr_static(model.rnn, "forward")
    [first] = bl.attach(model)
    [second] = bl.attach(model, "blelloch")
    assert second is first and first.algorithm == "blelloch"
    [third] = bl.attach(model.rnn, "linear")
    assert third is first and first.algorithm == "linear" and first.name == ""
    bl.detach(model)
    assert inspect.getattr_static(model.rnn, "forward") is own


def test_detach_restores_everything():
    model = Model()
    x = tensor(T, B, I, dtype=torch.float32)
    before, inside = step(model, x), dict(model.rnn.__dict__)
    chains = bl.attach(model)
    step(model, x)
    bl.detach(model)
    assert type(model.rnn) is nn.RNN
    assert "forward" not in model.rnn.__dict__
    assert model.rnn.__dict__.keys() == inside.keys()
    assert_identical(step(model, x), before)
    assert chains[0].calls == 1
    bl.detach(model)
    assert ": 0 of 1 recurrent layers accelerated" in bl.explain(
        model
    ) and "not attached" in bl.explain(model)


def test_detach_between_forward_and_backward():
    stock, scanned = twins()
    found = []
    for rnn in (stock, scanned):
        output, hn = rnn(tensor(T, B, I))
        bl.detach(rnn)
        LOSSES["both"](output, hn, 0).backward()
        found.append({name: parameter.grad for name, parameter in rnn.named_parameters()})
    assert_close(found[1], found[0], EXACT)


def test_a_forward_that_the_user_put_on_the_instance_stays():
    rnn = nn.RNN(I, H)
    rnn.forward = mine = lambda x, hx=None: (x * 2, None)
    assert bl.attach(rnn) == []
    assert rnn.forward is mine
    assert "overrides forward" in bl.explain(rnn)
    bl.detach(rnn)
    assert rnn.forward is mine


def test_a_forward_that_the_user_puts_over_the_chain_stays():
    rnn = nn.RNN(I, H)
    [chain] = bl.attach(rnn)
    rnn.forward = mine = lambda x, hx=None: chain(x * 2, hx)
    rnn(tensor(T, B, I, dtype=torch.float32))
    assert chain.calls == 1
    bl.detach(rnn)
    chain.detach()
    assert rnn.forward is mine


def test_detaching_a_chain_twice():
    rnn = nn.RNN(I, H)
    [chain] = bl.attach(rnn)
    chain.detach()
    chain.detach()
    assert "forward" not in rnn.__dict__


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bl.attach(Model(), "fast"), ValueError, "algorithm: found 'fast', wanted one of"),
        (lambda: bl.attach(Model(), ""), ValueError, "algorithm: found ''"),
        (lambda: bl.attach(Model(), None), TypeError, "algorithm: found NoneType, wanted str"),
        (lambda: bl.attach(lambda x: x), TypeError, "module: found function, wanted .*nn.Module"),
        (lambda: bl.attach(nn.RNN), TypeError, "module: found type"),
        (lambda: bl.detach(None), TypeError, "module: found NoneType"),
        (lambda: bl.explain([Model()]), TypeError, "module: found list"),
    ],
)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_refused_attach_changes_nothing():
    model = Model()
    [chain] = bl.attach(model, "linear")
    with pytest.raises(ValueError, match="algorithm"):
        bl.attach(model, "fast")
    assert chain.algorithm == "linear"


@pytest.mark.parametrize(
    ("options", "error"),
    [({"group": 3}, "group: found int"), ({"sharded": True}, "sharded: found True")],
)
def test_a_wrong_group(options, error):
    module = nn.GRU(2, 3)
    with pytest.raises((TypeError, ValueError), match=error):
        bl.attach(module, **options)
    assert not is_attached(module)
