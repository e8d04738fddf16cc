"""Subclasses of nn.RNN, nn.GRU and nn.LSTM that override forward: scanned at super().forward."""

import copy
import pickle
import re

import pytest
import torch
from support.helpers import B, H, I, T, fit, trainer
from support.overridden_layers import (
    ONE_INPUT,
    ByName,
    Doubled,
    ForecastingGRU,
    ForecastingLSTM,
    InABranch,
    Level3,
    OfAMetaclass,
    OfItsClass,
    OfItsType,
    OtherArguments,
    Recorder,
    Registered,
    Twice,
)
from support.recurrent_modules import assert_close, tensor
from support.rnn_twins import EXACT
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import bppsa_lightning as bl
from bppsa_lightning._replacement import Replacement, replacement_of

pytestmark = pytest.mark.usefixtures("accelerate_everything")


def build(kind, **settings):
    torch.manual_seed(0)
    return kind(I, H, **settings).double()


def attached(module, algorithm="auto"):
    [chain] = bl.attach(module, algorithm)
    assert replacement_of(module, bl.Chain) is chain and chain.module is module
    return module


def chain_of(module):
    return replacement_of(module, bl.Chain)


def results(module, *args, call=None, **kwargs):
    """What a call returns, and all gradients."""
    module.zero_grad()
    x = tensor(T, B, I).requires_grad_()
    output, states = (module if call is None else call)(x, *args, **kwargs)
    states = states if isinstance(states, tuple) else (states,)
    sum(value.sin().sum() for value in (output, *states)).backward()
    found = {"output": output.detach(), "x": x.grad}
    found |= {f"state {i}": state.detach() for i, state in enumerate(states)}
    return found | {name: p.grad.clone() for name, p in module.named_parameters()}


def assert_as_stock(module, stock, *args, calls=1, **kwargs):
    before = chain_of(module).calls
    assert_close(results(module, *args, **kwargs), results(stock, *args, **kwargs), EXACT)
    assert (chain_of(module).calls - before, chain_of(module).fallback_calls) == (calls, 0)


@pytest.mark.parametrize("algorithm", ["auto", "linear", "chunked", "blelloch"])
@pytest.mark.parametrize("kind", ONE_INPUT)
def test_each_call_of_super_is_scanned(kind, algorithm):
    stock = build(kind)
    module = attached(copy.deepcopy(stock), algorithm)
    assert_as_stock(module, stock, calls=2 if kind is Twice else 1)
    bl.detach(module)
    assert type(module) is kind and module.__dict__.keys() == stock.__dict__.keys()
    assert_close(results(module), results(stock), 0.0)


def test_another_signature():
    stock = build(OtherArguments, num_layers=2, bidirectional=True)
    mask = tensor(T, B, 1).gt(0)
    assert_as_stock(attached(copy.deepcopy(stock)), stock, mask, scale=3.0)


@pytest.mark.parametrize("kind", [ForecastingLSTM, ForecastingGRU])
@pytest.mark.parametrize("lengths", [[3, 0, 2], [0, 0, 0], None])
def test_layers_as_in_pytorch_forecasting(kind, lengths):
    stock = build(kind, batch_first=True)
    module = attached(copy.deepcopy(stock))
    lengths = lengths and torch.tensor(lengths)
    states = (tensor(1, 3, H, seed=2), tensor(1, 3, H, seed=3))

    def run(layer):
        layer.zero_grad()
        hx = states if kind is ForecastingLSTM else states[0]
        output, last = layer(tensor(3, T, I), hx, lengths=lengths)
        loss = output.square().sum() + sum(s.sin().sum() for s in last)
        if loss.requires_grad:
            loss.backward()
        found = {"output": output.detach()} | {str(i): s.detach() for i, s in enumerate(last)}
        return found | {name: p.grad for name, p in layer.named_parameters()}

    assert_close(run(module), run(stock), EXACT)
    reached = lengths is None or lengths.max() > 0
    assert (chain_of(module).calls, chain_of(module).fallback_calls) == (int(reached), 0)


def test_a_call_that_cannot_be_scanned_goes_to_torchs_forward():
    """Not to the user's, which would call us again."""
    module, x = attached(build(Doubled)), tensor(T, B, I).float()
    with pytest.raises(ValueError, match="dtype"):
        module(x)
    assert chain_of(module).fallback_calls == 1
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(tensor(T, B, I), tensor(T, B, I))
        output, _ = module(dual)
        assert torch.autograd.forward_ad.unpack_dual(output).tangent is not None
    assert chain_of(module).fallback_calls == 1  # which a tangent is no reason for


def test_what_the_class_says_of_itself_stays():
    module = attached(build(Level3))
    kind = type(module)
    assert isinstance(module, Level3) and issubclass(kind, nn.RNN)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(kind, name) == getattr(Level3, name)
    assert repr(module) == repr(build(Level3))
    assert type(attached(build(Level3))) is kind
    assert list(module.state_dict()) == list(build(Level3).state_dict())


def test_no_code_of_a_metaclass_or_a_base_hears_of_it():
    made, kinds = list(Recorder.made), list(Registered.kinds)
    module = attached(build(OfAMetaclass))
    assert type(type(module)) is Recorder and type(module).label == "mine"
    assert (Recorder.made, Registered.kinds) == (made, kinds)


def test_a_class_made_in_a_function():
    class Local(nn.GRU):
        def forward(self, input, hx=None):
            return super().forward(input * 2, hx)

    stock = build(Local)
    module = attached(copy.deepcopy(stock))
    assert_as_stock(module, stock)
    bl.detach(module)
    assert type(module) is Local


def test_attaching_twice_is_attaching_once():
    stock = build(Doubled)
    model = nn.Sequential(copy.deepcopy(stock))
    [first] = bl.attach(model)
    [second] = bl.attach(model[0], "linear")
    assert second is first and first.algorithm == "linear"
    assert_as_stock(model[0], stock)
    bl.detach(model)
    bl.detach(model)
    assert type(model[0]) is Doubled
    first.attach()
    assert_as_stock(model[0], stock)
    first.detach()
    assert type(model[0]) is Doubled


def test_subclasses_share_nothing():
    """One attached leaves others of its class, and of a subclass, alone."""
    one, other, sub = build(Doubled), build(Doubled), build(OfAMetaclass)
    bl.attach(one)
    assert type(other) is Doubled and type(sub) is OfAMetaclass
    bl.attach(sub)
    bl.detach(one)
    assert type(one) is Doubled and type(sub) is not OfAMetaclass
    assert_as_stock(sub, build(OfAMetaclass))


def pickled(protocol):
    return lambda module: pickle.loads(pickle.dumps(module, protocol))


def saved(module):
    from io import BytesIO

    torch.save(module, file := BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "torch.save": saved} | {
    f"pickle {protocol}": pickled(protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
}


@pytest.mark.parametrize("made", COPIES)
@pytest.mark.parametrize("kind", [Doubled, Level3, ForecastingLSTM])
def test_a_copy_is_attached_on_its_own(kind, made):
    module = attached(build(kind))
    twin = COPIES[made](module)
    assert type(twin) is type(module) and chain_of(twin) is not chain_of(module)
    assert chain_of(twin).module is twin
    assert_as_stock(twin, build(kind))
    assert chain_of(module).calls == 0
    bl.detach(module)
    assert_as_stock(twin, build(kind))
    bl.detach(twin)
    assert type(twin) is kind and type(COPIES[made](twin)) is kind


def test_a_shallow_copy_runs_pytorch():
    """So do the replicas of nn.DataParallel: another module's replacement is not theirs."""
    module = attached(build(Doubled))
    for twin in (copy.copy(module), module._replicate_for_data_parallel()):
        assert torch.equal(twin(tensor(T, B, I))[0], build(Doubled)(tensor(T, B, I))[0])
    assert chain_of(module).calls == 0


def test_hooks_and_the_state_dict():
    stock = build(Doubled)
    module, seen = copy.deepcopy(stock), []
    module.register_forward_hook(lambda _, args, output: seen.append((args, output)))
    attached(module)
    assert_as_stock(module, stock)
    assert len(seen) == 1
    module.load_state_dict({n: p + 1 for n, p in stock.state_dict().items()})
    stock.load_state_dict(module.state_dict())
    assert_as_stock(module, stock)


def test_functional_call():
    stock = build(Doubled)
    module = attached(copy.deepcopy(stock))
    given = {name: p.detach() * 2 for name, p in stock.named_parameters()}
    found, wanted = (
        torch.func.functional_call(m, given, (tensor(T, B, I),))[0] for m in (module, stock)
    )
    assert_close({"output": found}, {"output": wanted}, EXACT)
    assert chain_of(module).calls == 1
    assert_as_stock(module, stock)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    torch._dynamo.reset()
    stock = build(Doubled)
    module = attached(copy.deepcopy(stock))
    compiled = torch.compile(module, backend=backend)
    for _ in range(2):
        assert_close(results(module, call=compiled), results(stock), EXACT)
    assert chain_of(module).shape == (T, B, H) and chain_of(module).reason is None


def norm(module):
    return parametrizations.weight_norm(module, "weight_hh_l0")


def orthogonal(module):
    return parametrizations.orthogonal(module, "weight_hr_l0")


@pytest.mark.parametrize("first", ["attach", "parametrize"])
@pytest.mark.parametrize("kind", [Doubled, Level3, ForecastingLSTM])
def test_parametrized(kind, first):
    stock = norm(build(kind))
    module = build(kind)
    for step in ("attach", "parametrize") if first == "attach" else ("parametrize", "attach"):
        attached(module) if step == "attach" else norm(module)
    assert parametrize.type_before_parametrizations(module).__name__ == kind.__name__
    assert bl.attach(module) == [chain_of(module)]
    twin = copy.deepcopy(module)
    assert chain_of(twin).module is twin
    assert_as_stock(twin, stock)
    assert_as_stock(module, stock)
    bl.detach(module)
    assert parametrize.type_before_parametrizations(module) is kind
    assert_close(results(module), results(stock), EXACT)
    parametrize.remove_parametrizations(module, "weight_hh_l0")
    assert type(module) is kind


def test_detach_gives_a_parametrized_class_back():
    module = norm(build(Doubled))
    kind = type(module)
    attached(module)
    bl.detach(module)
    assert type(module) is kind


@pytest.mark.parametrize("first", ["attach", "parametrize"])
def test_a_parametrization_that_is_removed_or_added_meanwhile(first):
    module = build(Doubled, proj_size=2)
    if first == "attach":
        attached(module)
        norm(module)
    else:
        norm(module)
        attached(module)
    orthogonal(module)
    bl.detach(module)
    stock = orthogonal(norm(build(Doubled, proj_size=2)))
    stock.load_state_dict(module.state_dict())
    assert_close(results(module), results(stock), 0.0)
    attached(module)
    assert_as_stock(module, stock)
    parametrize.remove_parametrizations(module, "weight_hh_l0")
    parametrize.remove_parametrizations(module, "weight_hr_l0")
    assert_close(results(module), results(attached(copy.deepcopy(module))), EXACT)
    assert chain_of(module).calls == 2
    bl.detach(module)
    assert type(module) is Doubled


def test_old_weight_norm():
    stock = build(Doubled)
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(stock, "weight_hh_l0")
    module = build(Doubled)
    attached(module)
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(module, "weight_hh_l0")
    assert_as_stock(module, stock)


def test_a_class_extended_by_others_while_attached_keeps_their_class():
    """As FSDP does: torch's forward runs then."""
    module = attached(build(Doubled))
    extended = type("FSDPDoubled", (type(module),), {})
    module.__class__ = extended
    assert_as_stock(module, build(Doubled))
    bl.detach(module)
    assert type(module) is extended and chain_of(module) is None
    assert_close(results(module), results(build(Doubled)), 0.0)


def test_explain_names_the_forward():
    module = attached(build(Doubled))
    code = Doubled.forward.__code__
    place = re.escape(f"Doubled.forward ({code.co_filename}:{code.co_firstlineno})")
    line = rf"\(itself\): overrides forward: {place}; what is accelerated is its calls of super"
    assert re.search(line, bl.explain(module))
    module(tensor(T, B, I))
    assert re.search(line, bl.explain(module)) and ": 1 of 1 recurrent" in bl.explain(module)


@pytest.mark.parametrize("kind", [ByName, InABranch])
def test_a_forward_that_never_calls_super(kind):
    module = attached(build(kind))
    assert "0 calls" not in bl.explain(module)
    for _ in range(2):
        module(tensor(1, B, I))
    assert chain_of(module).calls == 0
    text = bl.explain(module)
    assert "0 calls accelerated: the layer was called 2 times, and never called super()" in text
    assert_close(results(module), results(build(kind)), EXACT)


@pytest.mark.parametrize("kind", [OfItsType, OfItsClass])
def test_super_of_the_type_is_left_to_pytorch(kind):
    module = build(kind)
    assert bl.attach(module) == []
    assert "its forward calls super(type(self), self)" in bl.explain(module)
    assert torch.equal(module(tensor(T, B, I))[0], build(kind)(tensor(T, B, I))[0])


def test_a_forward_on_the_instance_is_left_to_pytorch():
    module = build(Doubled)
    module.forward = lambda x: (x, None)
    assert bl.attach(module) == [] and "overrides forward" in bl.explain(module)
    assert type(module) is Doubled


def test_a_subclass_that_was_never_made_by_torchs_constructor():
    class Bare(nn.LSTM):
        def __init__(self):
            nn.Module.__init__(self)

    assert bl.attach(Bare()) == []
    assert "Bare lacks attributes that nn.LSTM sets" in bl.explain(Bare())


def test_the_strategy_attaches_for_the_time_of_fit():
    from support.helpers import Classifier

    class Net(Classifier):
        def __init__(self):
            super().__init__()
            self.rnn = Level3(I, H, batch_first=True)

        def on_train_batch_end(self, *args):
            assert isinstance(replacement_of(self.rnn, Replacement), bl.Chain)

    strategy = bl.BPPSAStrategy("linear")
    model = fit(strategy, Net, max_steps=2)
    assert type(model.rnn) is Level3 and chain_of(model.rnn) is None
    assert "1 of 1 recurrent layers accelerated" in strategy.explanation
    train = trainer("bppsa")
    assert train.strategy.chains == []
