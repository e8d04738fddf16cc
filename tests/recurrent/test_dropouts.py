"""nn.Dropout beside recurrent layers: the same bits and the same random numbers as PyTorch's."""

import copy
import io
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.ops.dropout import draws_as_torch
from bppsa_lightning.recurrent import count_dropouts
from bppsa_lightning.recurrent.dropouts import DropoutLayer

pytestmark = pytest.mark.skipif(
    not draws_as_torch(), reason="PyTorch's dropout draws other numbers on this processor"
)
B, T, H = 8, 100, 16  # B * T * H: more numbers than a call of ours wants


class Tagger(nn.Module):
    """Dropout before and behind an RNN that PyTorch computes: bits are those of the dropouts."""

    def __init__(self, p=0.3, inplace=False):
        super().__init__()
        self.before = nn.Dropout(p)
        self.rnn = nn.RNN(H, H, batch_first=True)
        self.behind = nn.Dropout(p, inplace)
        self.head = nn.Linear(H, 3)

    def forward(self, x):
        return self.head(self.behind(1 * self.rnn(self.before(x))[0]))


@pytest.fixture(autouse=True)
def rnns_are_pytorchs(monkeypatch):
    monkeypatch.setattr(planner, "fallback_reason", lambda request: "left to PyTorch")


@pytest.fixture
def calls(monkeypatch):
    """How many calls `ops.dropout` computed."""
    module, counted = sys.modules[draws_as_torch.__module__], []
    draw = module._drawn
    monkeypatch.setattr(module, "_drawn", lambda *args: counted.append(1) or draw(*args))
    return counted


def step(model, x, seed=5):
    """Output, gradients and the generator's state."""
    model.zero_grad()
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    output = model(x)
    output.square().sum().backward()
    grads = [p.grad for p in model.parameters()]
    return [output, x.grad, *grads, torch.get_rng_state()]


def assert_same_bits(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("layer", [bl.nn.LSTM(H, H), nn.Linear(H, H)], ids=["bl.nn", "no RNN"])
def test_layers_of_bl_nn_are_recurrent_layers_too(layer, calls):
    """Not attached themselves: nothing is there to attach."""
    model = nn.Sequential(nn.Dropout(0.3), layer)
    x, wanted = torch.randn(T, B, H), isinstance(layer, bl.nn.LSTM)
    torch.manual_seed(5)
    stock = model[0](x)
    assert bl.attach(model) == []
    assert count_dropouts(model) == wanted
    torch.manual_seed(5)
    assert_same_bits([model[0](x)], [stock])
    assert len(calls) == wanted
    bl.detach(model)
    assert count_dropouts(model) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("p", [0.3, 0.9, 0.0, 1.0, 0, 1])
def test_results_and_random_numbers_have_the_same_bits(p, inplace, dtype, calls):
    torch.manual_seed(0)
    model, x = Tagger(p, inplace).to(dtype), torch.randn(B, T, H, dtype=dtype)
    ours = copy.deepcopy(model)
    bl.attach(ours)
    assert count_dropouts(ours) == 2
    assert_same_bits(step(ours, x), step(model, x))
    assert len(calls) == (2 - inplace if p in (0.3, 0.9) else 0)
    model.eval(), ours.eval()
    assert_same_bits(step(ours, x), step(model, x))


def test_what_a_user_changes_later_holds(calls):
    model, x = Tagger(), torch.randn(B, T, H)
    ours = copy.deepcopy(model)
    bl.attach(ours)
    for each in (model, ours):
        each.before.p, each.behind.training = 0.7, False
    assert_same_bits(step(ours, x), step(model, x))
    assert len(calls) == 1


def test_a_model_that_is_detached_is_as_it_was():
    model = Tagger()
    before = {name: set(m.__dict__) for name, m in model.named_modules()}
    bl.attach(model), bl.attach(model)
    assert "nn.Dropout, on a CPU by bl.ops.dropout with PyTorch's numbers: 2" in bl.explain(model)
    bl.detach(model)
    assert {name: set(m.__dict__) for name, m in model.named_modules()} == before
    assert count_dropouts(model) == 0 and "nn.Dropout" not in bl.explain(model)


class Louder(nn.Dropout):
    def forward(self, input):
        return super().forward(input) + 1


def test_only_pytorchs_own_class_beside_a_recurrent_layer():
    own = nn.Dropout()
    own.forward = lambda input: input
    model = nn.ModuleList([nn.RNN(3, 3), nn.Dropout(), Louder(), nn.Dropout1d(), own])
    bl.attach(model)
    assert [type(m.__dict__.get("forward")) for m in model[1:4]] == [
        DropoutLayer, type(None), type(None),
    ]  # fmt: skip
    assert model[4].forward(3) == 3
    alone = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
    bl.attach(alone)
    assert count_dropouts(alone) == 0


def test_none_where_pytorch_draws_other_numbers(monkeypatch):
    monkeypatch.setattr(sys.modules[DropoutLayer.__module__], "draws_as_torch", lambda: False)
    model = Tagger()
    bl.attach(model)
    assert count_dropouts(model) == 0


def test_copies_pickles_and_hooks():
    model, x, seen = Tagger(), torch.randn(B, T, H), []
    bl.attach(model)
    model.before.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    wanted = step(model, x)
    assert seen == [x.shape]
    model.before._forward_hooks.clear()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert count_dropouts(other) == 2 and other.before.forward.module is other.before
        assert_same_bits(step(other, x), wanted)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace. is:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_scripted_traced_exported_and_compiled():
    model, x = Tagger().eval(), torch.randn(B, T, H)
    wanted = model(x)
    bl.attach(model)
    torch.testing.assert_close(torch.jit.script(model)(x), wanted)
    assert torch.equal(model(x), wanted) and count_dropouts(model) == 2
    torch.testing.assert_close(torch.jit.trace(model, x)(x), wanted)
    exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), wanted)
    model.train()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=False)
    for one, other in zip(step(compiled, x), step(model, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    bl.detach(model)
    assert not {"__prepare_scriptable__", "_compiled_call_impl"} & {*model.before.__dict__}


@pytest.mark.parametrize("pruned", [True, False])
def test_in_a_stack_that_another_replacement_walks(pruned, calls):
    """A pruned one calls the dropout; one that is scanned over depth takes its place."""
    stack = nn.Sequential(nn.Linear(H, H), nn.ReLU(), nn.Dropout(0.3), nn.Linear(H, 3))
    if pruned:
        prune.l1_unstructured(stack[0], "weight", 0.9)
    model = nn.ModuleDict({"rnn": nn.RNN(H, H, batch_first=True), "stack": stack})
    model.forward = lambda x: stack(model["rnn"](x)[0].reshape(B * T, H))
    x = torch.randn(B, T, H)
    wanted = step(model, x)
    bl.attach(model, "auto" if pruned else {"stack": "blelloch"})
    assert count_dropouts(model) == int(pruned)
    for one, other in zip(step(model, x), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert len(calls) == 1
