"""Engines of windows: their dtypes, their weights as cuDNN wants them, and what they cost a GPU."""

import copy

import pytest
import torch
from support import gpus
from support.cases import relative_error
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.recurrent.engines import LayerEngine, PytorchEngine
from bppsa_lightning.windows import Memory, choose_cut

CELLS = {"rnn_tanh": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
each_cell = pytest.mark.parametrize("cell", CELLS)


def by_pytorch(monkeypatch):
    """Windows over PyTorch's kernels."""
    ask = planner.fallback_reason
    windows = lambda r: "for the test" if r.layers == 1 and r.algorithm == "auto" else ask(r)  # noqa: E731
    monkeypatch.setattr(planner, "fallback_reason", windows)


def under_autocast(module, x):
    with torch.autocast("cpu", torch.bfloat16):
        try:
            return module(x)[0]
        except RuntimeError as error:  # oneDNN's LSTM in bfloat16, on a processor without AVX-512
            assert "primitive descriptor" in str(error)
            pytest.skip("PyTorch's LSTM has no bfloat16 on this processor")


@each_cell
@pytest.mark.parametrize("kind", ["ours", "pytorchs"])
def test_windows_under_autocast_are_as_exact_as_pytorch(cell, kind, monkeypatch):
    if kind == "pytorchs":
        by_pytorch(monkeypatch)
    torch.manual_seed(0)
    stock = CELLS[cell](3, 12)
    layer, true = copy.deepcopy(stock), copy.deepcopy(stock).double()
    bl.attach(layer, "speculative")
    x, found = torch.randn(1200, 2, 3), []
    for module in (layer, stock):
        y = under_autocast(module, x)
        y.float().square().sum().backward()
        found.append([y, *(p.grad for p in module.parameters())])
    y = true(x.double())[0]
    y.square().sum().backward()
    exact = [y, *(p.grad for p in true.parameters())]
    assert " windows of " in bl.explain(layer)
    for ours, theirs, truth in zip(*found, exact, strict=True):
        assert ours.dtype == theirs.dtype
        assert relative_error(ours, truth) <= relative_error(theirs, truth) + 1e-6


def flattened(arr, stride0, *sizes):
    """What cuDNN does to weights, as far as the CPU can tell."""
    memory, at = torch.empty(sum(w.numel() for w in arr), dtype=arr[0].dtype), 0
    for w in arr:
        piece = memory[at : at + w.numel()].view(w.shape).copy_(w)
        at += w.numel()
        w.set_(piece)
    flattened.calls.append((stride0, *sizes))


@pytest.fixture
def cudnn(monkeypatch):
    """cuDNN takes everything; the calls that put weights together."""
    flattened.calls = []
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda t: True)
    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", flattened)
    monkeypatch.setattr(torch.backends.cudnn.rnn, "get_cudnn_mode", str)
    return flattened.calls


OPTIONS = [{}, {"bias": False}, {"proj_size": 5}, {"proj_size": 5, "bias": False}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_cudnn_is_given_weights_in_one_piece(options, cudnn):
    torch.manual_seed(0)
    layer = nn.LSTM(3, 12, **options)
    w_ih, w_hh, *rest = layer.parameters()
    w_hr = rest.pop() if layer.proj_size else None
    b_ih, b_hh = rest or (None, None)
    b_ih is None or b_ih.requires_grad_(False)
    engine = PytorchEngine("lstm", [w_ih, w_hh, b_ih, b_hh, w_hr])
    own = engine.with_own_tensors()
    count = len(list(layer.parameters()))
    assert cudnn == [(count, 3, "LSTM", 12, layer.proj_size, 1, False, False)]
    for a, b in zip(own.tensors, engine.tensors, strict=True):
        assert torch.equal(a, b) and a.is_leaf and a.requires_grad == b.requires_grad
        assert a.untyped_storage().data_ptr() == own.tensors[0].untyped_storage().data_ptr()
    assert all((a is None) == (b is None) for a, b in zip(own.weights, engine.weights, strict=True))
    same = own.with_own_tensors()  # it copies none that lie so
    assert len(cudnn) == 1 and same.tensors[0].data_ptr() == own.tensors[0].data_ptr()
    x, state = torch.randn(20, 2, 3), [torch.zeros(2, layer.proj_size or 12), torch.zeros(2, 12)]
    for a, b in zip(own([x], state)[1], engine([x], state)[1], strict=True):
        assert torch.equal(a, b)
    engine.in_dtype(torch.float64)
    assert len(cudnn) == 2


@each_cell
@pytest.mark.parametrize("H", [8, 20, 64])
def test_a_gpu_walks_more_windows_than_a_cpu(cell, H, monkeypatch):
    """A few samples more hardly cost a step there; a call costs as much as many steps."""
    cpu = LayerEngine(cell, [*CELLS[cell](1, H).parameters()])
    gpus.claim(monkeypatch)
    with FakeTensorMode():
        weights = [torch.empty(w.shape, device="cuda") for w in cpu.tensors]
        ours, theirs = (kind(cell, weights) for kind in (LayerEngine, PytorchEngine))
    for engine in (ours, theirs):
        assert engine.rows_for_twice > 10
    if H <= 32:
        assert theirs.rows_for_twice < ours.rows_for_twice and theirs.call > ours.call
    long = choose_cut(30_000, 16, 60, ours.cost, ours.call)
    assert long.windows >= 60


def test_a_layer_in_another_dtype_is_looked_at_again():
    """Levels in float32 say nothing of a walk in float64."""
    torch.manual_seed(0)
    layer, x, memory = nn.GRU(3, 12), torch.randn(2000, 2, 3), Memory()

    def rest(dtype):
        engine = LayerEngine("gru", [w.to(dtype) for w in layer.parameters()])
        assert memory.plan(engine, [x.to(dtype)], [torch.zeros(2, 12, dtype=dtype)], asked=True)
        assert memory.levels.rounding[0].dtype == dtype
        memory.report = None  # nobody walks these windows
        return memory.state_dict()["rest"]

    f32, f64 = torch.float32, torch.float64
    assert [rest(d) for d in (f32, f32, f64, f64, f32)] == [64, 63, 64, 63, 64]
