"""What torch.jit, torch.onnx and torch.fx write down of the layers of `bl.nn`."""

import io

import pytest
import torch
from torch import nn

import bppsa_lightning as bl

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

ONE_OPERATOR = [
    ("RNN", {"nonlinearity": "relu"}),
    ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("LSTM", {"bias": False}),
    ("LSTM", {"proj_size": 2}),
]
STEP_BY_STEP = [
    ("GRU", {"recurrent_dropout": 0.2, "zoneout": 0.1}),
    ("PeepholeLSTM", {}),
    ("LayerNormLSTM", {"bidirectional": True}),
    ("LayerNormGRU", {"batch_first": True}),
    ("IndRNN", {"num_layers": 2}),
    ("LiGRU", {}),
    ("MinGRU", {"bidirectional": True}),
]


def layer_of(kind, options):
    torch.manual_seed(0)
    return getattr(bl.nn, kind)(3, 4, **options).eval()


def traced(layer, x):
    """What a file of the trace holds; calls of Python functions could not be saved."""
    file = io.BytesIO()
    trace = torch.jit.trace(layer, (x,))
    assert "bppsa::" not in str(trace.inlined_graph)
    torch.jit.save(trace, file)
    file.seek(0)
    return torch.jit.load(file)


@pytest.mark.parametrize("kind, options", ONE_OPERATOR + STEP_BY_STEP)
def test_a_trace_is_of_pytorchs_operators(kind, options):
    layer = layer_of(kind, options)
    x = torch.randn(5, 2, 3, requires_grad=True)
    trace = traced(layer, x)
    torch.testing.assert_close(trace(x), layer(x))
    wanted = torch.autograd.grad(layer(x)[0].square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(trace(x)[0].square().sum(), x), wanted)


@pytest.mark.parametrize("kind, options", ONE_OPERATOR)
def test_a_trace_of_one_operator_is_for_any_number_of_steps(kind, options):
    layer = layer_of(kind, options)
    trace = traced(layer, torch.randn(5, 2, 3))
    for size in ((1, 2, 3), (9, 4, 3)):
        x = torch.randn(size)
        torch.testing.assert_close(trace(x), layer(x))


@pytest.mark.parametrize("kind, options", STEP_BY_STEP)
def test_a_trace_step_by_step_refuses_another_number_of_steps(kind, options):
    trace = traced(layer_of(kind, options), torch.randn(5, 5, 3))
    for size in ((3, 3, 3), (7, 7, 3)):
        with pytest.raises(RuntimeError):
            trace(torch.randn(size))


@pytest.mark.parametrize("kind, options", ONE_OPERATOR + STEP_BY_STEP)
def test_onnx_is_given_pytorchs_operators(kind, options, monkeypatch):
    """By the flag that torch.onnx.export sets, as not every machine has its packages."""
    layer, x = layer_of(kind, options), torch.randn(5, 2, 3)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with torch.no_grad():
        program = torch.export.export(layer, (x,), strict=False)
        monkeypatch.undo()
        assert "bppsa" not in str(program.graph)
        torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind, options", ONE_OPERATOR[:3] + STEP_BY_STEP)
def test_onnx_export(kind, options, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    layer, x = layer_of(kind, options), torch.randn(5, 2, 3)
    torch.onnx.export(layer, (x,), tmp_path / "layer.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "layer.onnx")
    [output, *_] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), layer(x)[0].detach())


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layers = nn.ModuleList([layer])

    def forward(self, x, first):
        output, _ = self.layers[0](x, hx=first)
        return output.tanh()


@pytest.mark.parametrize("kind, options", ONE_OPERATOR + STEP_BY_STEP)
def test_fx_keeps_a_layer_whole(kind, options):
    layer, x = layer_of(kind, options), torch.randn(5, 2, 3)
    first = layer(x)[1]
    graph = torch.fx.symbolic_trace(Model(layer))
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["layers.0"]
    torch.testing.assert_close(graph(x, first), layer(x, first)[0].tanh())


@pytest.mark.parametrize("kind, options", ONE_OPERATOR + [("LSTM", {"recurrent_dropout": 0.2})])
def test_a_scripted_layer_is_pytorchs(kind, options):
    layer, x = layer_of(kind, options), torch.randn(5, 2, 3)
    scripted = torch.jit.script(nn.Sequential(layer))
    assert "bppsa" not in str(scripted.inlined_graph)
    torch.testing.assert_close(scripted(x), layer(x))
    assert isinstance(layer.to_torch(), getattr(nn, kind))
    assert [*map(id, layer.to_torch().parameters())] == [*map(id, layer.parameters())]


def test_what_pytorch_has_no_layer_for_is_not_scripted():
    with pytest.raises(
        NotImplementedError, match="found a bl.nn.IndRNN, .* wanted torch.jit.trace"
    ):
        torch.jit.script(layer_of("IndRNN", {}))
    with pytest.raises(ValueError, match="zoneout: found 0.1 in evaluation, wanted 0"):
        torch.jit.script(layer_of("GRU", {"zoneout": 0.1}))
    with pytest.raises(ValueError, match="recurrent_dropout: found 0.2 in training, wanted 0"):
        layer_of("LSTM", {"recurrent_dropout": 0.2}).train().to_torch()
