"""Classes that override the forward of nn.RNN, nn.GRU or nn.LSTM and call it by super()."""

import copy
import pickle
from abc import ABC, abstractmethod
from pathlib import Path

import pytest
import torch
from support.helpers import assert_close, assert_identical
from support.overridden import Picklable, wrong
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import bppsa_lightning as bl

pytestmark = pytest.mark.usefixtures("accelerate_everything")


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_random_classes_are_right(first):
    assert {seed: wrong(seed) for seed in range(first, first + 40)} == dict.fromkeys(
        range(first, first + 40)
    )


class HandlesEmpty(ABC, nn.RNNBase):
    """A mixin of the shape that pytorch-forecasting has: sequences may be of length 0."""

    @abstractmethod
    def init_state(self, x): ...

    def forward(self, x, hx=None, lengths=None, enforce_sorted=True):
        if lengths is None:
            return super().forward(x, hx=hx)
        packed = pack_padded_sequence(
            x, lengths.clamp(min=1), batch_first=self.batch_first, enforce_sorted=enforce_sorted
        )
        output, state = super().forward(packed, hx)
        return output, torch.where((lengths == 0)[None, :, None], self.init_state(x), state)


class Forecasting(HandlesEmpty, nn.GRU):
    def init_state(self, x):
        return x.new_zeros(self.num_layers, x.shape[0 if self.batch_first else 1], 6)


def gradients(layer, *arguments, call=None, **options):
    layer.zero_grad()
    output, last = (layer if call is None else call)(*arguments, **options)
    output = output.data if isinstance(output, PackedSequence) else output
    (output.square().sum() + last.sum()).backward()
    return {"output": output.detach(), "last": last.detach()} | {
        name: parameter.grad for name, parameter in layer.named_parameters()
    }


def twins(build=lambda: Forecasting(3, 6, batch_first=True, dtype=torch.float64)):
    torch.manual_seed(0)
    layer = build()
    return layer, copy.deepcopy(layer), torch.randn(4, 9, 3, dtype=torch.float64)


@pytest.mark.parametrize("lengths", [None, torch.tensor([9, 5, 0, 2])])
def test_a_mixin_between(lengths):
    layer, stock, x = twins()
    [chain] = bl.attach(layer)
    given = {"lengths": lengths, "enforce_sorted": False}
    assert_close(gradients(layer, x, **given), gradients(stock, x, **given), 1e-10)
    assert chain.calls == 1 and chain.fallback_calls == 0


def test_explain_names_the_class_and_its_line():
    layer, _, x = twins()
    model = nn.Sequential(layer)
    bl.attach(model)
    line = HandlesEmpty.forward.__code__.co_firstlineno
    assert f"0: inside HandlesEmpty.forward, {Path(__file__)}:{line}" in bl.explain(model)
    assert "1 of 1 recurrent layers accelerated" in bl.explain(model)


def test_the_class_is_the_users_for_whoever_asks():
    layer, stock, _ = twins()
    bl.attach(layer)
    cls = type(layer)
    assert isinstance(layer, Forecasting) and isinstance(layer, nn.GRU)
    assert (cls.__name__, cls.__module__) == (Forecasting.__name__, Forecasting.__module__)
    assert repr(layer) == repr(stock) and layer.state_dict().keys() == stock.state_dict().keys()
    other = Forecasting(3, 6)
    bl.attach(other)
    assert type(other) is cls  # one for all
    bl.detach(layer)
    assert type(layer) is Forecasting and layer.__dict__.keys() == stock.__dict__.keys()
    assert type(other) is cls


def test_attached_twice_is_attached_once():
    layer, _, x = twins()
    [chain] = bl.attach(layer, "linear")
    assert bl.attach(layer, "chunked") == [chain] and chain.algorithm == "chunked"
    gradients(layer, x)
    assert chain.calls == 1
    bl.detach(layer)
    bl.detach(layer)
    assert type(layer) is Forecasting


@pytest.mark.parametrize("of", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_have_a_chain_of_their_own(of):
    layer, stock, x = twins(lambda: Picklable(3, 6, batch_first=True, dtype=torch.float64))
    [chain] = bl.attach(layer)
    copied = of(layer)
    assert_close(gradients(copied, x), gradients(stock, x), 1e-10)
    [other] = bl.chain.named_chains(copied).values()
    assert other is not chain and other.module is copied and chain.calls == 0 < other.calls
    bl.detach(copied)
    assert type(copied) is Picklable and type(layer) is not Picklable


def test_a_checkpoint_of_the_whole_module(tmp_path):
    layer, stock, x = twins(lambda: Picklable(3, 6, batch_first=True, dtype=torch.float64))
    bl.attach(layer)
    torch.save(layer, tmp_path / "layer.pt")
    loaded = torch.load(tmp_path / "layer.pt", weights_only=False)
    assert_close(gradients(loaded, x), gradients(stock, x), 1e-10)


def test_hooks_see_the_users_forward():
    layer, stock, x = twins()
    seen = []
    for each in (layer, stock):
        each.register_forward_hook(lambda _, given, out: seen.append((len(given), out[0].shape)))
    bl.attach(layer)
    gradients(layer, x)
    gradients(stock, x)
    assert seen[0] == seen[1]


def test_functional_call_swaps_the_weights():
    layer, stock, x = twins()
    bl.attach(layer)
    other = {name: p.detach() * 0.5 for name, p in stock.named_parameters()}
    found, wanted = (torch.func.functional_call(each, other, x)[0] for each in (layer, stock))
    assert torch.allclose(found, wanted, atol=1e-12)
    assert_close(gradients(layer, x), gradients(stock, x), 1e-10)


def test_a_call_that_cannot_be_scanned_is_pytorchs():
    layer, _, x = twins()
    [chain] = bl.attach(layer)
    with pytest.raises(ValueError, match="RNN input dtype"):
        layer(x.float())
    assert chain.fallback_calls == 1 and "dtypes" in chain.last_fallback


def test_parametrized_before_is_left_alone():
    layer, stock, x = twins()
    for each in (layer, stock):
        parametrizations.weight_norm(each, "weight_hh_l0")
    before = type(layer)
    assert bl.attach(layer) == [] and type(layer) is before
    assert "overrides forward, and is parametrized" in bl.explain(layer)
    parametrize.remove_parametrizations(layer, "weight_hh_l0")
    [_] = bl.attach(layer)


def test_parametrized_after_is_scanned_and_detached():
    layer, stock, x = twins()
    [chain] = bl.attach(layer)
    for each in (layer, stock):
        torch.manual_seed(1)
        parametrizations.weight_norm(each, "weight_hh_l0")
    assert_close(gradients(layer, x), gradients(stock, x), 1e-10)
    assert chain.calls == 1
    bl.detach(layer)
    assert_identical(gradients(layer, x), gradients(stock, x))
    assert chain.calls == 1


class Refuses(nn.GRU):
    def __init_subclass__(cls, *, key, **kwargs):
        super().__init_subclass__(**kwargs)

    def forward(self, x, hx=None):
        return super().forward(x, hx)


def test_a_class_that_cannot_be_derived_from_is_left_alone():
    layer = Refuses(3, 6)
    assert bl.attach(layer) == [] and type(layer) is Refuses
    assert "overrides forward, and cannot be derived from: TypeError" in bl.explain(layer)


def test_a_forward_of_the_instance_is_left_alone():
    layer, _, _ = twins()
    layer.forward = lambda x: x
    assert bl.attach(layer) == [] and type(layer) is Forecasting
    assert bl.explain(layer).splitlines()[-1].strip().endswith("overrides forward")


def test_compiled():
    layer, stock, x = twins()
    bl.attach(layer)
    compiled = torch.compile(layer, backend="aot_eager")
    assert_close(gradients(layer, x, call=compiled), gradients(stock, x), 1e-10)
