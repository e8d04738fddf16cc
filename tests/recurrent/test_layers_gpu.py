"""Attached recurrent layers on a CUDA device: every option, dtypes, and how torch uses a device.

T steps, B batch, I input, H hidden.
"""

import copy
import time
from dataclasses import replace

import pytest
import torch
from support.cases import needs_gpu, relative_error
from support.recurrent_modules import (
    CELLS,
    OPTIONS,
    Summed,
    assert_close,
    assert_scanned,
    outcome,
    pack,
    pair,
    pairwise,
    results,
    scanned,
    tensor,
)
from support.recurrent_modules import build as build_module
from support.waits import sync_debug_mode
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.planner.machine import forget

pytestmark = [
    *needs_gpu,
    pytest.mark.usefixtures("accelerate_everything"),
    pytest.mark.filterwarnings("ignore:RNN module weights are not part:UserWarning"),
    pytest.mark.filterwarnings("ignore:dropout option adds dropout after all:UserWarning"),
]
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
SCANNED = ["RNN-tanh", "RNN-relu", "GRU", "LSTM"]
each_cell = pytest.mark.parametrize("cell", SCANNED)
# The noise of dropout is another one on each device.
ON_CUDA = OPTIONS | {"dropout": [0.0, 1.0]}


each_case = pytest.mark.parametrize(
    "case", pairwise(ON_CUDA), ids=lambda c: "-".join(map(str, c.values()))
)


@each_case
def test_options_meet(case):
    stock = build_module(case)
    truth = outcome(case, copy.deepcopy(stock))
    module = scanned(stock)
    assert_close(outcome(case, module, F64, "cuda"), truth)
    found = outcome(case, module, F32, "cuda")
    assert_scanned(module, calls=2)
    rounded = outcome(case, stock, F32)
    for name, value in truth.items():
        if value is None or rounded[name] is None:
            continue
        assert found[name].dtype == F32 and found[name].is_cuda, name
        allowed = 2 * relative_error(rounded[name], value) + 1e-5
        assert relative_error(found[name], value) <= allowed, name


def tensors_of(results):
    output, states = results
    output = output.data if isinstance(output, nn.utils.rnn.PackedSequence) else output
    return [output, *(states if isinstance(states, tuple) else (states,))]


# T, B, I, H: one of everything; more threads than samples; either side of every kernel's shape.
SIZES = [(1, 1, 1, 1), (1, 300, 3, 20), (500, 1, 38, 20), (30, 7, 1, 8), (30, 7, 5, 32)]
SIZES += [(30, 7, 3, 33), (30, 7, 64, 64), (30, 3, 3, 100), (30, 3, 128, 128), (12, 3, 3, 200)]


@each_cell
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(cell, size):
    T, B, I, H = size
    kind, settings = CELLS[cell]
    torch.manual_seed(0)
    stock = kind(I, H, **settings).double()
    x = tensor(T, B, I)
    truth = results(stock, x, None, {})
    for dtype, tolerance in ((F64, 1e-10), (F32, 3e-5)):
        module = scanned(stock).to("cuda", dtype)
        module.zero_grad()
        found = results(module, x.to("cuda", dtype), None, {})
        assert_scanned(module)
        for name, value in truth.items():
            assert relative_error(found[name], value) <= tolerance, (name, dtype)


@each_cell
def test_an_empty_batch(cell):
    _, module = pair(cell, F32)
    module.cuda()
    x = torch.empty(5, 0, 3, device="cuda", requires_grad=True)
    output, _ = module(x)
    output.sum().backward()
    assert output.shape == (5, 0, 4) and x.grad.shape == x.shape
    assert not any(p.grad.any() for p in module.parameters())
    assert_scanned(module)


@each_cell
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_more_steps_than_cudnn_takes(cell, dtype):
    stock, module = pair(cell)
    on_cpu = scanned(stock)
    x = tensor(66_000, 2, 3)
    wanted = results(on_cpu, x, None, {})
    found = results(module.to("cuda", dtype), x.to("cuda", dtype), None, {})
    assert_scanned(module)
    for name, value in wanted.items():
        assert relative_error(found[name], value) <= (1e-10 if dtype == F64 else 1e-3), name


@each_cell
@pytest.mark.parametrize("low", [F16, BF16], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_16_bits_are_as_close_to_the_truth_as_cudnn(cell, low, autocast):
    stock, module = pair(cell, F32 if autocast else low, num_layers=2, bidirectional=True)
    stock, module = stock.cuda(), module.cuda()
    x = tensor(30, 5, 3).to("cuda", F32 if autocast else low)
    truth = results(copy.deepcopy(stock).double(), x.double(), None, {})
    with torch.autocast("cuda", low, enabled=autocast):
        wanted, found = (results(m, x, None, {}) for m in (stock, module))
    assert_scanned(module)
    for name, value in truth.items():
        assert found[name].dtype == wanted[name].dtype, name
        allowed = 1.2 * float((wanted[name].double() - value).norm()) + 1e-5
        assert float((found[name].double() - value).norm()) <= allowed, name


@each_cell
def test_derivatives_of_derivatives(cell):
    def run(m, device):
        x = tensor(5, 3, 3).to(device).requires_grad_()
        output, states = m(x)
        loss = output.square().sum() + sum(s.sin().sum() for s in tensors_of((output, states)))
        inner = torch.autograd.grad(loss, [x, m.weight_hh_l0], create_graph=True)
        (loss + sum(g.square().sum() for g in inner)).backward()
        return {"x": x.grad.cpu()} | {name: p.grad.cpu() for name, p in m.named_parameters()}

    stock, module = pair(cell)
    assert_close(run(module.cuda(), "cuda"), run(stock, "cpu"))
    assert_scanned(module)


@each_cell
def test_compiled(cell):
    stock, module = (Summed(m.cuda()) for m in pair(cell, num_layers=2))
    x = tensor(6, 3, 3).cuda()
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.compile(module, fullgraph=True, backend="aot_eager")(x).backward()
    stock(x).backward()
    found, wanted = ({n: p.grad for n, p in m.named_parameters()} for m in (module, stock))
    assert_close(found, wanted)


def test_without_cudnn():
    stock, module = pair("GRU", F32)
    stock, module = stock.cuda(), module.cuda()
    x = tensor(20, 3, 3).float().cuda()
    with torch.backends.cudnn.flags(enabled=False):
        wanted, found = (results(m, x, None, {}) for m in (stock, module))
    assert_scanned(module)
    assert all(relative_error(found[n], wanted[n]) < 1e-4 for n in wanted)


# --- The device: streams, waiting, graphs, several of them ----------------------------------


def step(module, x):
    """One forward and backward; the gradients."""
    module.zero_grad()
    output, _ = module(x)
    (output * 1.5).sum().backward()
    return {name: p.grad for name, p in module.named_parameters()}


def on_cuda(cell, **settings):
    _, module = pair(cell, F32, num_layers=2, **settings)
    return module.cuda(), tensor(300, 4, 3).float().cuda()


@each_cell
def test_nothing_waits_for_the_device(cell):
    module, x = on_cuda(cell)
    step(module, x)
    with sync_debug_mode("error"):
        step(module, x)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    start = time.perf_counter()
    step(module, x)
    assert time.perf_counter() - start < 0.5
    torch.cuda.synchronize()
    assert_scanned(module, calls=3)


@each_cell
def test_on_the_current_stream(cell):
    module, x = on_cuda(cell)
    wanted = {name: g.clone() for name, g in step(module, x).items()}
    late = torch.zeros_like(x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late.copy_(x)
        found = step(module, late)
    stream.synchronize()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_call_like_the_last_one_is_not_decided_again(monkeypatch):
    """And one that is unlike in whatever a decision depends on is."""
    module, x = on_cuda("LSTM", algorithm="auto")
    asked, ask = [], planner.fallback_reason
    monkeypatch.setattr(planner, "fallback_reason", lambda r: asked.append(r.dtype) or ask(r))
    for _ in range(3):
        step(module, x)
    assert asked == [F32]
    for _ in range(2):
        with torch.autocast("cuda", F16):
            module(x)
    assert asked == [F32, F16]
    with torch.backends.cudnn.flags(enabled=False):
        module(x)
    module(x[:200])
    module(x)
    forget()
    module(x)
    assert asked == [F32, F16, *4 * [F32]]


@each_cell
def test_auto_walks_long_sequences_in_windows(cell, monkeypatch):
    """Where they pay; as exact as the walk; and not within a CUDA graph."""
    stock, module = pair(cell, F32)
    exact, module = copy.deepcopy(stock).double().cuda(), module.cuda()
    x = torch.randn(6000, 4, 3, generator=torch.Generator().manual_seed(0)).cuda()
    wanted = step(exact, x.double())
    for pays in (False, True):
        monkeypatch.setattr(planner, "windows_pay", lambda request, pays=pays: pays)
        forget()
        for _ in range(2):
            found = step(module, x)
            assert (bl.explain(module).find("speculative") >= 0) == pays
            assert all(relative_error(found[n], wanted[n]) < 1e-4 for n in wanted)
    graph, static = torch.cuda.CUDAGraph(), x.clone()
    with torch.no_grad():
        module(static)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            module(static)


@each_cell
def test_the_same_bits_every_time(cell):
    module, x = on_cuda(cell, bidirectional=True)
    wanted = {name: g.clone() for name, g in step(module, x).items()}
    for _ in range(5):
        found = step(module, x)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@each_cell
@pytest.mark.parametrize("algorithm", ["auto", "linear", "chunked", "blelloch"])
def test_a_whole_step_in_a_cuda_graph(cell, algorithm):
    module, x = on_cuda(cell, algorithm=algorithm)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(module, x)
    torch.cuda.current_stream().wait_stream(side)
    module.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    static = x.clone()
    with torch.cuda.graph(graph):
        output, _ = module(static)
        (output * 1.5).sum().backward()
    captured = {name: p.grad for name, p in module.named_parameters()}
    for seed in (2, 3):
        other = tensor(*x.shape, seed=seed).float().cuda()
        static.copy_(other)
        for gradient in captured.values():
            gradient.zero_()
        graph.replay()
        found = {name: g.clone() for name, g in captured.items()}
        eager = copy.deepcopy(module)
        wanted = step(eager, other)
        for name, want in wanted.items():
            assert relative_error(found[name], want) < 1e-6, name


@each_cell
def test_gradients_under_a_scaler(cell):
    """A scale of 2^16 leaves float32's gradients, and those of 16-bit results, finite."""
    _, module = pair(cell, F32)
    module.cuda()
    x = tensor(50, 4, 3).float().cuda()
    module(x)[0].mean().backward()
    plain = {name: p.grad for name, p in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cuda")
    module.zero_grad()
    with torch.autocast("cuda", F16):
        loss = module(x)[0].float().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for name, p in module.named_parameters():
        assert relative_error(p.grad, plain[name]) < 1e-2, name
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 65536.0
    assert_scanned(module, calls=2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
@each_cell
def test_a_device_that_is_not_the_current_one(cell):
    module, x = on_cuda(cell)
    wanted = {name: g.cpu() for name, g in step(module, x).items()}
    module.to("cuda:1")
    assert torch.cuda.current_device() == 0
    found = step(module, x.to("cuda:1"))
    assert torch.cuda.current_device() == 0
    assert all(g.device.index == 1 for g in found.values())
    assert all(torch.equal(found[name].cpu(), wanted[name]) for name in wanted)


def test_a_launch_that_cannot_be_is_an_error():
    H = 5000
    w_ih, w_hh = (torch.zeros(H, n, device="cuda") for n in (1, H))
    with pytest.raises(RuntimeError, match="H must be in 1"):
        bl.ops.rnn(torch.zeros(2, 1, 1, device="cuda"), None, w_ih, w_hh)


def test_packed_sequences_of_one_length():
    stock, module = pair("LSTM", bidirectional=True)
    x = tensor(9, 4, 3)
    wanted = results(stock, pack(x, [9] * 4), None, {})
    found = results(module.cuda(), pack(x.cuda(), [9] * 4), None, {})
    assert_scanned(module)
    assert all(relative_error(found[n], wanted[n]) < 1e-10 for n in wanted)


@each_cell
def test_nothing_waits_for_sequences_of_different_lengths(cell):
    module, x = on_cuda(cell, bidirectional=True)
    x = pack(x, [300, 200, 31, 1])

    def run():
        output, _ = module(x)
        output.data.sum().backward()

    run()
    with sync_debug_mode("error"):
        run()
    assert_scanned(module, calls=2)


@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
@pytest.mark.parametrize("algorithm", ["linear", "chunked", "blelloch"])
def test_a_layer_that_keeps_little(cell, algorithm, monkeypatch):
    """The backward computes the gates again: less memory, the same gradients to rounding."""
    module, x = on_cuda(cell, algorithm=algorithm)
    wanted = {name: g.clone() for name, g in step(module, x).items()}
    plan = planner.plan
    monkeypatch.setattr(planner, "plan", lambda request: replace(plan(request), saved=1))
    found = step(module, x)
    assert all(relative_error(found[name], wanted[name]) < 1e-5 for name in wanted)
    sizes = []
    for keep in (1, 2):
        keeping = lambda request, keep=keep: replace(plan(request), saved=keep)  # noqa: E731
        monkeypatch.setattr(planner, "plan", keeping)
        kept = torch.cuda.memory_allocated()
        output, _ = module(x)
        sizes.append(torch.cuda.memory_allocated() - kept)
        del output
    assert sizes[0] < sizes[1]
