"""bppsa::recurrent and bppsa::recurrent_backward on a CUDA device, against torch's own RNN, GRU and
LSTM on the CPU in float64: outputs and every gradient.

Letters: T steps, B batch, I input, H state.
"""

import math

import pytest
import torch
from support.cases import needs_gpu, relative_error
from support.recurrent_layers import GATES, NAMES, TWO_STATES, module

import bppsa_lightning  # noqa: F401  (loads the operators)

pytestmark = needs_gpu

LINEAR = ("linear", 0, 0)
PLANS = [LINEAR, ("chunked", 8, 0), ("chunked", 37, 0), ("blelloch", 0, 3)]
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-11}


def layer(cell, T, B, I, H, initial=True, bias=True):
    """Operands in float64 on the CPU, by name, with torch's own initialisation."""
    rng = torch.Generator().manual_seed(T + 7 * B + 31 * H)

    def uniform(*size):
        return (torch.rand(size, generator=rng, dtype=torch.float64) * 2 - 1) / math.sqrt(H)

    rows = GATES[cell] * H
    operands = {"x": uniform(T, B, I) * math.sqrt(H), "w_ih": uniform(rows, I)}
    operands["w_hh"] = uniform(rows, H)
    if bias:
        operands |= {"b_ih": uniform(rows), "b_hh": uniform(rows)}
    if initial:
        operands["h0"] = uniform(B, H)
        if cell in TWO_STATES:
            operands["c0"] = uniform(B, H)
    return operands


def incoming(cell, T, B, H, every_step=True):
    rng = torch.Generator().manual_seed(5)
    names = {"h_n": (B, H)} | ({"output": (T, B, H)} if every_step else {})
    names |= {"c_n": (B, H)} if cell in TWO_STATES else {}
    return {n: torch.randn(s, generator=rng, dtype=torch.float64) for n, s in names.items()}


def stock(cell, operands, gradients, reverse=False):
    """What torch's own layer makes of the same, in float64."""
    t = {n: v.clone().requires_grad_() for n, v in operands.items()}
    B, H = gradients["h_n"].shape
    own = module(cell, t["x"].shape[2], H, bias="b_ih" in t, dtype=torch.float64)
    long = {"w_ih": "weight_ih_l0", "w_hh": "weight_hh_l0", "b_ih": "bias_ih_l0"}
    long["b_hh"] = "bias_hh_l0"
    zero = torch.zeros(B, H, dtype=torch.float64)
    state = t.get("h0", zero)[None]
    if cell in TWO_STATES:
        state = (state, t.get("c0", zero)[None])
    x = t["x"].flip(0) if reverse else t["x"]
    weights = {long[n]: v for n, v in t.items() if n in long}
    output, last = torch.func.functional_call(own, weights, (x, state))
    found = {"output": output.flip(0) if reverse else output}
    found["h_n"] = last[0][0] if cell in TWO_STATES else last[0]
    if cell in TWO_STATES:
        found["c_n"] = last[1][0]
    loss = sum((found[n] * g).sum() for n, g in gradients.items())
    return found | dict(zip([f"grad_{n}" for n in t], torch.autograd.grad(loss, list(t.values()))))


def moved(t, device, dtype):
    """On a device, in a dtype, with the strides that it has; `to` keeps dense ones only."""
    if not t.numel():
        return t.to(device, dtype)
    reach = 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride()))
    return t.as_strided((reach,), (1,)).to(device, dtype).as_strided(t.shape, t.stride())


def ours(
    cell,
    operands,
    gradients,
    plan=LINEAR,
    reverse=False,
    dtype=torch.float32,
    wanted=255,
    device="cuda",
    keep=2,
):
    t = {n: moved(v, device, dtype) for n, v in operands.items()}
    g = {n: moved(v, device, dtype) for n, v in gradients.items()}
    common = [t.get(n) for n in NAMES]
    output, h_n, c_n, kept = torch.ops.bppsa.recurrent(cell, *common, reverse, keep, plan[0])
    algorithm, chunk, levels = plan
    grads = torch.ops.bppsa.recurrent_backward(
        *(cell, g.get("output"), g.get("h_n"), g.get("c_n"), output, kept, *common),
        *(reverse, algorithm, chunk, levels, wanted),
    )
    found = {"output": output, "h_n": h_n} | ({"c_n": c_n} if cell in TWO_STATES else {})
    return found | {f"grad_{n}": v for n, v in zip(NAMES, grads) if n in operands}


def check(found, wanted, dtype=torch.float32):
    for name, want in wanted.items():
        assert found[name].isfinite().all(), name
        # A gradient that faded out of the dtype's range can only be found to be nothing.
        if want.numel() and want.abs().max() < torch.finfo(dtype).tiny:
            assert found[name].abs().max() <= torch.finfo(dtype).tiny, name
            continue
        error = relative_error(found[name], want)
        assert error <= TOLERANCE[dtype], (name, error)


each_cell = pytest.mark.parametrize("cell", GATES)
each_plan = pytest.mark.parametrize("plan", PLANS, ids=str)


@each_cell
@each_plan
@pytest.mark.parametrize("H", [1, 5, 8, 20, 32, 33, 64, 100, 200])
def test_state_sizes(cell, plan, H):
    for T, B, I in ((1, 3, 1), (100, 2, 1), (41, 5, 7)):
        operands, gradients = layer(cell, T, B, I, H), incoming(cell, T, B, H)
        check(ours(cell, operands, gradients, plan), stock(cell, operands, gradients))


@each_cell
@each_plan
@pytest.mark.parametrize("T, B, I, H", [(300, 16, 1, 20), (7, 40, 38, 20), (300, 1, 12, 20)])
def test_paper_sizes(cell, plan, T, B, I, H):
    operands = layer(cell, T, B, I, H)
    for every_step in (True, False):
        gradients = incoming(cell, T, B, H, every_step)
        check(ours(cell, operands, gradients, plan), stock(cell, operands, gradients))


@each_cell
@each_plan
@pytest.mark.parametrize("reverse", [False, True])
def test_options(cell, plan, reverse):
    for options in ({}, {"initial": False}, {"bias": False}, {"initial": False, "bias": False}):
        for H in (6, 20, 40):
            operands, gradients = layer(cell, 50, 3, 2, H, **options), incoming(cell, 50, 3, H)
            for dtype in (torch.float32, torch.float64):
                found = ours(cell, operands, gradients, plan, reverse, dtype)
                check(found, stock(cell, operands, gradients, reverse), dtype)


@each_cell
def test_strides(cell):
    T, B, I, H = 30, 4, 3, 20
    operands, gradients = layer(cell, T, B, I, H), incoming(cell, T, B, H)
    gradients["output"] = gradients["output"][:1, :1].expand(T, B, H)
    operands["x"] = operands["x"].transpose(0, 1).contiguous().transpose(0, 1)
    for plan in PLANS:
        check(ours(cell, operands, gradients, plan), stock(cell, operands, gradients))


@each_plan
@pytest.mark.parametrize("reverse", [False, True])
def test_projections(plan, reverse):
    """An LSTM whose state is projected, against the CPU's operator in float64."""
    for T, B, I, H, P in ((1, 3, 2, 5, 2), (60, 3, 1, 20, 7), (40, 5, 3, 40, 12)):
        for initial in (True, False):
            operands = layer("lstm", T, B, I, H, initial)
            operands["w_hr"] = operands["w_hh"][:P, :].contiguous()
            operands["w_hh"] = operands["w_hh"][:, :P].contiguous()
            if initial:
                operands["h0"] = operands["h0"][:, :P].contiguous()
            gradients = {n: g[..., :P] for n, g in incoming("lstm", T, B, H).items() if n != "c_n"}
            gradients = {n: g.contiguous() for n, g in gradients.items()}
            wanted = ours("lstm", operands, gradients, LINEAR, reverse, torch.float64, device="cpu")
            for dtype in (torch.float32, torch.float64):
                found = ours("lstm", operands, gradients, plan, reverse, dtype)
                check(found, wanted, dtype)


@each_plan
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gates_again(cell, plan, reverse):
    """The forward keeps the states alone; the gates' gradients take the place of the gates."""
    for T, B, I, H in ((1, 3, 2, 5), (90, 40, 1, 20), (30, 5, 3, 100)):
        operands, gradients = layer(cell, T, B, I, H), incoming(cell, T, B, H)
        for dtype in (torch.float32, torch.float64):
            found = ours(cell, operands, gradients, plan, reverse, dtype, keep=1)
            check(found, stock(cell, operands, gradients, reverse), dtype)


@each_cell
def test_wanted(cell):
    operands, gradients = layer(cell, 20, 3, 1, 20), incoming(cell, 20, 3, 20)
    everything = ours(cell, operands, gradients)
    for bit, name in enumerate(NAMES[:7]):
        if name not in operands:
            continue
        found = ours(cell, operands, gradients, wanted=1 << bit)
        assert torch.equal(found[f"grad_{name}"], everything[f"grad_{name}"])
        assert all(
            found[f"grad_{n}"].numel() == 0 for n in NAMES[:7] if n in operands and n != name
        )


@each_cell
def test_long(cell):
    """More steps than a grid has rows or cuDNN takes, against the CPU's operator in float64."""
    T, B, H = 70000, 2, 20
    operands, gradients = layer(cell, T, B, 1, H), incoming(cell, T, B, H)
    wanted = ours(cell, operands, gradients, dtype=torch.float64, device="cpu")
    for plan in (LINEAR, ("chunked", 64, 0), ("chunked", 500, 0), ("blelloch", 0, 5)):
        check(ours(cell, operands, gradients, plan), wanted)


@each_cell
def test_no_samples(cell):
    found = ours(cell, layer(cell, 5, 0, 1, 20), incoming(cell, 5, 0, 20))
    assert found["output"].shape == (5, 0, 20)
    assert not found["grad_w_hh"].any() and not found["grad_b_ih"].any()


@each_cell
@each_plan
def test_same_bits_every_time(cell, plan):
    operands, gradients = layer(cell, 200, 16, 1, 20), incoming(cell, 200, 16, 20)
    first = ours(cell, operands, gradients, plan)
    for _ in range(5):
        again = ours(cell, operands, gradients, plan)
        assert all(torch.equal(first[n], again[n]) for n in first)


@each_cell
@each_plan
def test_gradients_that_grow(cell, plan):
    """Weights beyond the edge of chaos, in float64: errors of the forward grow as fast."""
    T, B, H = 100, 2, 20
    operands, gradients = layer(cell, T, B, 1, H), incoming(cell, T, B, H, every_step=False)
    operands["w_hh"] = operands["w_hh"] * 2.5
    exact = stock(cell, operands, gradients)
    found = ours(cell, operands, gradients, plan, dtype=torch.float64)
    for name, want in exact.items():
        assert found[name].isfinite().all(), name
        assert relative_error(found[name], want) <= 1e-6, name


@each_cell
@each_plan
def test_cuda_graph(cell, plan):
    operands, gradients = layer(cell, 64, 4, 1, 20), incoming(cell, 64, 4, 20)
    t = {n: v.to("cuda", torch.float32) for n, v in operands.items()}
    g = {n: v.to("cuda", torch.float32) for n, v in gradients.items()}
    common = [t.get(n) for n in NAMES]

    def step():
        output, _, _, kept = torch.ops.bppsa.recurrent(cell, *common, False, 2, plan[0])
        return torch.ops.bppsa.recurrent_backward(
            *(cell, g["output"], g["h_n"], g.get("c_n"), output, kept, *common),
            *(False, *plan, 127),
        )

    expected = [v.clone() for v in step()]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for v in captured:
        v.fill_(math.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(expected, captured))


@each_cell
def test_other_stream(cell):
    """The kernels wait for what is queued on the current stream, not on the default one."""
    operands, gradients = layer(cell, 64, 4, 1, 20), incoming(cell, 64, 4, 20)
    expected = ours(cell, operands, gradients)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        found = ours(cell, operands, gradients)
    stream.synchronize()
    assert all(torch.equal(found[n], expected[n]) for n in expected)
