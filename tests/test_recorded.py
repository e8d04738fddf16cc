"""torch.jit and torch.onnx write down what a model does: attached ones do what PyTorch's do."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning.chain import named_chains

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attribute.* assigned during export:UserWarning"),
]


class Labelled(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        y = self.layers(x)
        return y[0] if isinstance(y, tuple) else y


def stack():
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4), nn.Tanh()
    )


def pruned():
    layers = stack()
    for layer in (layers[0], layers[4]):
        prune.l1_unstructured(layer, "weight", 0.9)
    return layers


IMAGES, STEPS = (32, 2, 8, 8), (9, 2, 3)
MODELS = {
    "stack": (stack, "blelloch", IMAGES),
    "pruned": (pruned, "auto", IMAGES),
    "GRU": (lambda: nn.GRU(3, 4), "linear", STEPS),
}


@pytest.fixture(params=MODELS)
def model(request, monkeypatch):
    """(PyTorch's, the same attached, an input)."""
    make, algorithm, shape = MODELS[request.param]
    twins = []
    for _ in range(2):
        torch.manual_seed(0)
        twins.append(Labelled(make()))
    bl.attach(twins[1], algorithm)
    return *twins, torch.randn(shape)


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_traces_are_pytorchs(model, trained, learning, every_layer_is_sparse):
    stock, ours, x = model
    if trained:
        ours(x).sum().backward()
    with torch.set_grad_enabled(learning):
        traced = torch.jit.trace(ours, (x,), check_trace=False)
    file = io.BytesIO()
    torch.jit.save(traced, file)  # calls of Python functions would raise
    assert "bppsa::" not in str(traced.inlined_graph)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(x), stock(x))
    for chain in named_chains(ours).values():
        assert chain.last_fallback == "torch.jit.trace records PyTorch's own operators"


def test_a_scripted_stack_is_pytorchs_and_stays_attached():
    torch.manual_seed(0)
    stock = Labelled(stack())
    ours, x = copy.deepcopy(stock), torch.randn(IMAGES)
    [chain] = bl.attach(ours, "blelloch")
    scripted = torch.jit.script(ours.layers)
    assert "bppsa" not in str(scripted.inlined_graph)
    assert torch.equal(scripted(x), stock(x)) and chain.calls == 0
    for calls in (1, 2):
        ours(x).sum().backward()
        assert (chain.calls, chain.fallback_calls) == (calls, 0)
    torch.jit.script(ours.layers)
    bl.detach(ours)
    assert not {"forward", "_super_forward", "__prepare_scriptable__"} & {*ours.layers.__dict__}
    assert torch.equal(ours(x), stock(x)) and chain.calls == 2


@pytest.mark.filterwarnings("ignore:While compiling, we found .*side effects")  # of pruning's hooks
@pytest.mark.parametrize("strict", [False, True])
def test_what_is_attached_itself_is_exported(model, strict, every_layer_is_sparse):
    """torch.export looks for the code of a module's forward; that of a layer may be ours."""
    stock, ours, x = model
    ours(x).sum().backward()  # a pruned layer has seen its mask
    with torch.no_grad():
        found = torch.export.export(ours.layers, (x,), strict=strict).module()(x)
        wanted = stock.layers(x)
    torch.testing.assert_close(found, wanted)


def test_onnx_is_given_pytorchs_operators(model, monkeypatch, every_layer_is_sparse):
    """By the flag that torch.onnx.export sets, as not every machine has its packages."""
    stock, ours, x = model
    with torch.no_grad():
        monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
        program = torch.export.export(ours, (x,), strict=False)
        assert "ops.bppsa" not in str(program.graph)
        monkeypatch.undo()
        assert torch.equal(program.module()(x), stock(x))
        torch.testing.assert_close(ours(x), stock(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_onnx_export(model, tmp_path):
    pytest.importorskip("onnxscript")
    _, ours, x = model
    for dynamo in (True, False):
        torch.onnx.export(ours.eval(), (x,), tmp_path / "model.onnx", dynamo=dynamo)
        assert b"bppsa" not in (tmp_path / "model.onnx").read_bytes()
