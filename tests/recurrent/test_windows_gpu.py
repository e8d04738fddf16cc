"""algorithm="speculative" on a CUDA device: layers in windows, over our kernels and over cuDNN's.

T steps, B batch, I input, H hidden.
"""

import copy
import warnings

import pytest
import torch
from support.cases import needs_gpu, relative_error
from support.waits import sync_debug_mode
from support.windows import assert_as_exact
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning import planner

DEVICE = "cuda"
KINDS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
T, B, I, H = 6000, 2, 3, 12
pytestmark = needs_gpu
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(params=["ours", "cuDNN"], autouse=True)
def engine(request, monkeypatch):
    """Whose kernels walk the windows, whatever the planner says; cuDNN's without TF32."""
    ask, answer = planner.fallback_reason, None if request.param == "ours" else "for the test"
    monkeypatch.setattr(
        planner, "fallback_reason", lambda r: answer if r.algorithm == "auto" else ask(r)
    )
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield request.param


def built(kind, **options):
    """A layer of PyTorch's, and the same in windows."""
    torch.manual_seed(0)
    stock = KINDS[kind](I, H, **options).to(DEVICE)
    layer = copy.deepcopy(stock)
    bl.attach(layer, "speculative")
    return stock, layer


def drawn(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def results(layer, x, hx=None):
    """Outputs and last states; gradients of positive weights, whose sums do not cancel."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    y, last = layer(x, hx)
    found = [y, *(last if isinstance(last, tuple) else (last,))]
    generator = torch.Generator().manual_seed(2)
    torch.autograd.backward(found, [torch.rand(t.shape, generator=generator).to(t) for t in found])
    return [*(t.detach() for t in found), x.grad, *(p.grad for p in layer.parameters())]


def windows_of(layer):
    return [line for line in bl.explain(layer).splitlines() if " windows of " in line]


OPTIONS = [
    {},
    {"bidirectional": True, "num_layers": 2, "batch_first": True},
    {"bias": False, "num_layers": 2},
    {"proj_size": 5},
    {"nonlinearity": "relu"},
]


@each_kind
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
def test_options(kind, options):
    """Also that cuDNN is given weights in one piece: warnings are errors here."""
    if ("proj_size" in options and kind != "LSTM") or ("nonlinearity" in options and kind != "RNN"):
        pytest.skip("no such option")
    stock, layer = built(kind, **options)
    x = drawn(*((B, T) if "batch_first" in options else (T, B)), I)
    found, walk = results(layer, x), results(stock, x)
    exact = results(copy.deepcopy(stock).double(), x.double())
    assert len(windows_of(layer)) == layer.num_layers * (1 + layer.bidirectional)
    assert all(line.endswith("all met") for line in windows_of(layer)), windows_of(layer)
    assert_as_exact(found, [walk], exact, slack=2e-6)
    for a, b in zip(results(layer, x), found, strict=True):  # the same bits
        assert torch.equal(a, b)


@each_kind
def test_initial_states_and_their_gradients(kind):
    stock, layer = built(kind)
    x, found = drawn(T, B, I), []
    for module in (layer, stock):
        h = drawn(1, B, H).requires_grad_()
        c = (2 * drawn(1, B, H)).requires_grad_()
        found.append(results(module, x, (h, c) if kind == "LSTM" else h))
        found[-1] += [h.grad, *([c.grad] if kind == "LSTM" else [])]
    assert windows_of(layer)
    for a, b in zip(*found, strict=True):
        assert relative_error(a, b) < 1e-4


def test_a_loss_on_the_last_state():
    stock, layer = built("GRU")
    x, found = drawn(T, B, I), []
    for module in (layer, stock):
        module(x)[1].square().sum().backward()
        found.append([p.grad for p in module.parameters()])
    assert windows_of(layer)
    for a, b in zip(*found, strict=True):
        assert relative_error(a, b) < 1e-4


@each_kind
def test_float64(kind):
    stock, layer = (m.double() for m in built(kind))
    x = drawn(T, B, I, dtype=torch.float64)
    found, exact = results(layer, x), results(stock, x)
    assert windows_of(layer)
    assert all(relative_error(a, b) < 1e-10 for a, b in zip(found, exact, strict=True))


# PyTorch 2.11 does not lay out cuDNN's weights in bfloat16, and says so.
@pytest.mark.filterwarnings("ignore:RNN module weights are not part:UserWarning")
@each_kind
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_16_bits_are_as_close_to_the_truth_as_cudnn(kind, low, autocast):
    stock, layer = built(kind)
    x = drawn(T, B, I)
    if not autocast:
        stock, layer, x = stock.to(low), layer.to(low), x.to(low)
    exact = results(copy.deepcopy(stock).double(), x.double())
    with torch.autocast(DEVICE, low, enabled=autocast):
        walk, found = (results(m, x) for m in (stock, layer))
    assert windows_of(layer)
    for ours, theirs, true in zip(found, walk, exact, strict=True):
        assert ours.dtype == theirs.dtype
        allowed = 1.2 * float((theirs.double() - true).norm()) + 1e-5 * float(true.norm())
        assert float((ours.double() - true).norm()) <= allowed


def test_gradients_under_a_scaler():
    _, layer = built("LSTM")
    x = drawn(T, B, I)
    layer(x)[0].mean().backward()
    plain = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    scaler, optimizer = torch.amp.GradScaler(DEVICE), torch.optim.SGD(layer.parameters(), lr=0.0)
    with torch.autocast(DEVICE, torch.float16):
        loss = layer(x)[0].float().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    assert windows_of(layer)
    for p, wanted in zip(layer.parameters(), plain, strict=True):
        assert relative_error(p.grad, wanted) < 1e-2


def test_a_layer_that_moves_and_changes_its_dtype_is_looked_at_again():
    stock, layer = built("GRU")
    for device, dtype in (("cpu", torch.float32), (DEVICE, torch.float32), (DEVICE, torch.float64)):
        x = drawn(T, B, I).to(device, dtype)
        found = results(layer.to(device, dtype), x)
        exact = results(copy.deepcopy(stock).to(device).double(), x.double())
        assert windows_of(layer)
        limit = 1e-10 if dtype == torch.float64 else 1e-4
        assert all(relative_error(a, b) < limit for a, b in zip(found, exact, strict=True))


# --- The device: waiting, streams, graphs ---------------------------------------------------


def waits(run):
    """How often the host waited for the device."""
    with sync_debug_mode("warn"), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = run()
    return result, sum("synchroniz" in str(w.message) for w in found)


@each_kind
def test_windows_that_meet_are_waited_for_once(kind):
    _, layer = built(kind)
    x = drawn(T, B, I).requires_grad_()
    layer(x)[0].sum().backward()  # it looks, which waits more often
    (y, _), forward = waits(lambda: layer(x))
    _, backward = waits(y.sum().backward)
    assert windows_of(layer)
    assert (forward, backward) == (1, 1)


def test_on_the_current_stream():
    _, layer = built("GRU")
    x = drawn(T, B, I)
    results(layer, x)
    wanted, late = results(layer, x), torch.zeros_like(x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late.copy_(x)
        found = results(layer, late)
    stream.synchronize()
    assert windows_of(layer)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@each_kind
def test_no_windows_in_a_cuda_graph(kind):
    """A graph cannot look whether they met: it holds the walk."""
    stock, layer = built(kind)
    x = drawn(T, B, I)

    def step():
        layer(x)[0].square().sum().backward()
        return [p.grad for p in layer.parameters()]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    assert windows_of(layer)
    layer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    x.copy_(drawn(T + 1, B, I)[1:])
    for g in captured:
        g.zero_()
    graph.replay()
    stock(x)[0].square().sum().backward()
    for g, p in zip(captured, stock.parameters(), strict=True):
        assert relative_error(g, p.grad) < 1e-4


def test_a_long_sequence_is_walked_in_many_windows(engine):
    """(16, 30,000, 20): the size that windows are for."""
    torch.manual_seed(0)
    stock = nn.GRU(1, 20).to(DEVICE)
    layer = copy.deepcopy(stock)
    bl.attach(layer, "speculative")
    x = torch.rand(30_000, 16, 1, device=DEVICE)
    found, walk = results(layer, x), results(stock, x)
    exact = results(copy.deepcopy(stock).double(), x.double())
    assert layer.forward.plan.windows >= (50 if engine == "ours" else 10)
    assert_as_exact(found, [walk], exact, slack=2e-6)
