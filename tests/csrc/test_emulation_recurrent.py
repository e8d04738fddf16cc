"""The recurrent chains of csrc/cuda, run thread by thread on the host (see test_emulation.py),
against torch's own RNN, GRU and LSTM in float64, and the reference of others.

Letters: T steps, B batch, I input, H state.
"""

import ctypes
import math
from functools import partial

import pytest
import torch
from support import emulated_recurrent
from support.emulated_recurrent import CELLS, Case, ForwardRequest
from support.emulation import STORAGE, Device, compiled, needs_gxx
from support.recurrent_layers import GATES, TWO_STATES, module

pytestmark = needs_gxx

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5}


def case(
    cell, T, B, I, H, reverse=False, initial=True, bias=True, incoming="all", gain=1.0, proj_size=0
):
    P = proj_size or H
    rng = torch.Generator().manual_seed(T + 7 * B + 31 * H)

    def some(*size):
        return torch.randn(size, generator=rng, dtype=torch.float64)

    rows, scale = GATES[cell] * H, gain / math.sqrt(H)
    tensors = {"x": some(T, B, I), "w_ih": some(rows, I) * scale, "w_hh": some(rows, P) * scale}
    if proj_size:
        tensors["w_hr"] = some(P, H) * scale
    if bias:
        tensors |= {"b_ih": some(rows) * 0.3, "b_hh": some(rows) * 0.3}
    if initial:
        tensors["h0"] = some(B, P)
    gradients = {"h_n": some(B, P)}
    if incoming == "all":
        gradients["output"] = some(T, B, P)
    if incoming == "expanded":
        gradients["output"] = some(1, 1, P).expand(T, B, P)
    if cell in TWO_STATES:
        gradients["c_n"] = some(B, H)
        if initial:
            tensors["c0"] = some(B, H)
    return Case(cell, reverse, tensors, gradients)


def oracle(case):
    """Outputs and gradients by torch's own layer, in float64."""
    t = {name: value.clone().requires_grad_() for name, value in case.tensors.items()}
    (B, P), I = case.incoming["h_n"].shape, t["x"].shape[2]
    H = len(t["w_ih"]) // GATES[case.cell]
    more = {"proj_size": P} if "w_hr" in t else {}
    layer = module(case.cell, I, H, bias="b_ih" in t, dtype=torch.float64, **more)
    names = {"w_ih": "weight_ih_l0", "w_hh": "weight_hh_l0", "b_ih": "bias_ih_l0"}
    names |= {"b_hh": "bias_hh_l0", "w_hr": "weight_hr_l0"}
    weights = {names[k]: v for k, v in t.items() if k in names}
    h0 = t.get("h0", torch.zeros(B, P, dtype=torch.float64))
    state = h0[None]
    if case.cell in TWO_STATES:
        state = (state, t.get("c0", torch.zeros(B, H, dtype=torch.float64))[None])
    x = t["x"].flip(0) if case.reverse else t["x"]
    output, last = torch.func.functional_call(layer, weights, (x, state))
    output = output.flip(0) if case.reverse else output
    found = {"output": output, "h_n": last[0][0] if case.cell in TWO_STATES else last[0]}
    if case.cell in TWO_STATES:
        found["c_n"] = last[1][0]
    loss = sum((found[name] * grad).sum() for name, grad in case.incoming.items())
    gradients = torch.autograd.grad(loss, list(t.values()))
    results = {name: value.detach() for name, value in found.items()}
    return results | {f"grad_{name}": g for name, g in zip(t, gradients)}


@pytest.fixture(scope="session")
def library():
    return compiled("recurrent")


@pytest.fixture(scope="session")
def emulate(library):
    return partial(emulated_recurrent.emulate, library)


def check(result, case, dtype=torch.float32, trusted=True):
    expected = oracle(case)
    # A product of dead relus is exactly zero, and rightly not trusted with a large carry.
    assert not trusted or case.cell == "rnn_relu" or result.untrusted == 0
    for name, want in expected.items():
        have = result.found[name]
        assert have.isfinite().all(), name
        error = (have.double() - want).abs().max() if want.numel() else 0
        scale = want.abs().max().clamp_min(1.0) if want.numel() else 1
        assert error <= TOLERANCE[dtype] * scale, (name, float(error / scale))


each_cell = pytest.mark.parametrize("cell", CELLS)
HOWS = [
    {"algorithm": "linear"},
    {"algorithm": "chunked", "chunk": 3},
    {"algorithm": "chunked", "chunk": 5},
    {"algorithm": "blelloch", "levels": 2},
]
each_how = pytest.mark.parametrize("how", HOWS, ids=lambda how: "-".join(map(str, how.values())))


@each_cell
@pytest.mark.parametrize("T", [1, 2, 3, 4, 7, 12])
def test_every_chunk_and_level(emulate, cell, T):
    one = case(cell, T, 2, 2, 5)
    plans = [{"algorithm": "linear"}]
    plans += [{"algorithm": "chunked", "chunk": chunk} for chunk in range(1, T + 2)]
    plans += [{"algorithm": "blelloch", "levels": level} for level in range(5)]
    for how in plans:
        check(emulate(one, **how), one)


@each_cell
@each_how
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_options(emulate, cell, how, reverse, dtype):
    for I, options in (
        (1, {}),
        (3, {"initial": False, "bias": False}),
        (1, {"incoming": "last", "initial": False}),
        (40, {"incoming": "expanded"}),
    ):
        one = case(cell, 11, 3, I, 6, reverse=reverse, **options)
        check(emulate(one, dtype, batch_first=I == 3, **how), one, dtype)


# Either side of every shape; 20 and 32 are read in pieces; 33 … 65 in several warps; 100 with
# weights left in memory; 130: two units a thread.
@each_cell
@pytest.mark.parametrize("H", [1, 8, 9, 20, 21, 32, 33, 64, 65, 100, 128, 130, 250])
def test_state_sizes(emulate, cell, H):
    one = case(cell, 4 if H > 64 else 9, 2, 1, H)
    for how in HOWS if H <= 33 else HOWS[:1]:
        check(emulate(one, **how), one)
    if H in (20, 33, 100):
        check(emulate(one, torch.float64), one, torch.float64)


@each_cell
@pytest.mark.parametrize("shared_limit", [10 * 1024, 40 * 1024])
def test_little_shared_memory(emulate, cell, shared_limit):
    """Of weights that registers do not hold, some or all stay in memory."""
    one = case(cell, 3, 1, 1, 100 if cell in ("gru", "lstm") else 250)
    check(emulate(one, shared_limit=shared_limit), one)


@each_cell
def test_very_large_state(emulate, cell):
    one = case(cell, 2, 1, 2, 520)
    check(emulate(one), one)


@each_cell
def test_many_columns_a_lane(emulate, cell):
    """One processor: two columns a lane pay early."""
    one = case(cell, 26, 4, 1, 20)
    check(emulate(one, algorithm="chunked", chunk=2, processors=1), one)


@each_how
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_projections(emulate, how, reverse, dtype):
    for I, H, P, options in (
        (1, 6, 3, {}),
        (3, 20, 19, {"initial": False, "bias": False}),
        (1, 5, 1, {"incoming": "last"}),
        (2, 7, 2, {"incoming": "expanded", "initial": False}),
    ):
        one = case("lstm", 11, 3, I, H, reverse=reverse, proj_size=P, **options)
        check(emulate(one, dtype, batch_first=I == 3, **how), one, dtype)


def test_a_projection_of_one_step_and_of_no_samples(emulate):
    for T, B in ((1, 2), (2, 1), (3, 0)):
        one = case("lstm", T, B, 2, 5, proj_size=3)
        check(emulate(one), one)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@each_how
@pytest.mark.parametrize("reverse", [False, True])
def test_gates_again(emulate, cell, how, reverse):
    """Nothing but the states is kept; the gates' gradients take the gates' place."""
    for I, H, options in ((1, 6, {}), (3, 20, {"initial": False, "bias": False}), (2, 33, {})):
        if how["algorithm"] == "chunked" and H > 32:
            continue
        one = case(cell, 11, 3, I, H, reverse=reverse, **options)
        for dtype, seed in ((torch.float32, 1), (torch.float32, 4), (torch.float64, 2)):
            check(emulate(one, dtype, keep=1, seed=seed, **how), one, dtype)


@each_cell
@each_how
def test_limits_and_order_change_nothing(emulate, cell, how):
    one = case(cell, 13, 3, 2, 20)
    first = emulate(one, **how)
    for device in ({"seed": 5}, {"seed": 8, "grid_limit": 2}, {"scratch_limit": 5000}):
        again = emulate(one, **how, **device)
        for name, value in first.found.items():
            if device.get("scratch_limit") and how["algorithm"] == "blelloch":
                continue  # other stretches, other sums
            assert torch.equal(value, again.found[name]), (name, device)
        check(again, one)


@each_cell
def test_scratch_of_a_chunked_scan(emulate, cell):
    """Samples go in groups whose products fit the limit, or one by one."""
    one = case(cell, 13, 3, 2, 5)
    how = {"algorithm": "chunked", "chunk": 3}
    for limit, groups in ((1 << 30, 1), (1, 3)):
        launches = emulate(one, **how, scratch_limit=limit).launches
        assert [launches.count(n) for n in ("compose", "carry", "replay")] == [groups] * 3


@each_cell
def test_launches(emulate, cell):
    def launches(T, **how):
        return emulate(case(cell, T, 1, 1, 3), **how).launches

    after = ["peephole parts", "add parts"] * (cell == "peephole") + [
        "gemm",
        "sum partials",
        "gemm",
    ]
    assert launches(12) == ["forward", "replay", *after]
    two = launches(12, algorithm="chunked", chunk=6)
    assert two == ["forward", "compose", "replay", *after]
    three = launches(12, algorithm="chunked", chunk=4)
    assert three == ["forward", "compose", "carry", "replay", *after]


@pytest.mark.parametrize("cell", ["rnn_relu", "gru", "lstm"])
def test_untrusted_products_are_walked(emulate, cell):
    """Products that overflow or vanish, while the gradients they act on do neither."""
    one = case(cell, 40, 2, 1, 4, incoming="last")
    for name in ("w_hh", "w_ih", "b_ih", "b_hh"):
        one.tensors[name].zero_()
    if cell == "rnn_relu":  # diagonal: one direction explodes, and the gradient is not in it
        one.tensors["h0"].fill_(1e-30)
        one.tensors["w_hh"].copy_(torch.diag(torch.tensor([1e6, 0.9, 0.5, 0.7])))
        one.tensors["h0"][:, 0] = 1e-280
        one.incoming["h_n"][:, 0] = 0
        dtype = torch.float64
        one.tensors["w_hh"][0, 0] = 1e12
    else:  # gates that close: the state before is forgotten
        closed = -60.0 if cell == "gru" else -90.0
        one.tensors["b_ih"][4:8] = closed
        one.incoming["h_n"].mul_(1e3)
        dtype = torch.float32
    result = emulate(one, dtype, algorithm="chunked", chunk=20)
    check(result, one, dtype, trusted=False)
    again = emulate(one, dtype, algorithm="chunked", chunk=5)
    check(again, one, dtype, trusted=False)


def fading(cell, T, B, H, entries, **options):
    """Gradients that enter at a few steps, and halve in each at least: gates that hold nothing."""
    one = case(cell, T, B, 1, H, gain=0.2, **options)
    if cell in ("gru", "lstm"):
        one.tensors["b_ih"][H : 2 * H] = -3
    silent = torch.ones(T, dtype=torch.bool).index_fill(
        0, torch.tensor(entries, dtype=torch.long), False
    )
    one.incoming["output"][silent] = 0
    if T - 1 not in entries:
        for name in {"h_n", "c_n"} & one.incoming.keys():
            one.incoming[name].zero_()
    return one


@each_cell
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "entries", [[1299], [600], [1299, *range(520, 530), 0], []], ids=["end", "middle", "some", "no"]
)
@pytest.mark.parametrize(
    "how", [{}, {"algorithm": "chunked", "chunk": 400}], ids=["linear", "chunked"]
)
def test_steps_that_no_gradient_reaches(emulate, cell, reverse, entries, how):
    """Zeros are written there, also over gates that were computed again."""
    one = fading(cell, 1300, 2, 5, entries)
    if reverse:
        output = one.incoming["output"].flip(0)
        one = one._replace(reverse=True, incoming=one.incoming | {"output": output})
    for dtype, keep in ((torch.float32, 2), (torch.float64, 1)):
        result = emulate(one, dtype, keep=keep, **how)
        check(result, one, dtype, trusted=False)
        grad_x = result.found["grad_x"].flip(0) if reverse else result.found["grad_x"]
        assert not grad_x[max(entries, default=-1) + 1 :].any()
        assert grad_x[entries].any() or not entries


# One warp, lanes that share a unit, weights in memory, several units a thread.
@pytest.mark.parametrize("cell, H", [("gru", 5), ("lstm", 33), ("gru", 100), ("rnn_tanh", 260)])
def test_steps_that_no_gradient_reaches_cost_no_barriers(emulate, cell, H):
    T = 1100 if H < 100 else 530

    def barriers(entries):
        one = fading(cell, T, 1, H, entries)
        result = emulate(one)
        check(result, one)
        return result.barriers

    every = barriers(list(range(T)))
    assert every - barriers([T - 1]) > (T - 512) / 2
    assert every - barriers([]) > T / 2
    assert every - barriers([0]) > T / 2


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_largest_state_of_a_device(emulate, library, cell, dtype):
    """What the forward allows the backward can do; a unit more, and it cannot."""

    def backward(H):
        one = case(cell, 2, 1, 2, H)
        check(emulate(one, dtype, shared_limit=limit), one, dtype)

    element = torch.finfo(dtype).bits // 8
    limit = 2 * GATES[cell] * element * 410  # for 410 units; they come in pieces of 64 bytes
    request = ForwardRequest(storage=STORAGE.index(dtype), cell=CELLS.index(cell))
    most = library.emulate_most_units(
        ctypes.byref(request), ctypes.byref(Device(shared_limit=limit))
    )
    assert most == 410 // (64 // element) * (64 // element) < 410
    backward(most)
    with pytest.raises(AssertionError, match="replay: bad launch"):
        backward(most + 1)


def test_no_samples(emulate):
    one = case("gru", 3, 0, 1, 5)
    result = emulate(one)
    assert not result.found["grad_w_hh"].any() and not result.found["grad_b_ih"].any()


@each_cell
@each_how
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("keep", [emulated_recurrent.LEAST, emulated_recurrent.ALL])
def test_without_w_ih_x_is_what_gates_are_sums_of(cell, how, reverse, keep, emulate):
    T, B, H = 7, 3, 5
    of = case(cell, T, B, GATES[cell] * H, H, reverse)
    of.tensors["w_ih"] = torch.eye(GATES[cell] * H, dtype=torch.float64)
    expected = oracle(of)
    del of.tensors["w_ih"], expected["grad_w_ih"]
    for batch_first in (False, True):
        found = emulate(of, torch.float64, batch_first=batch_first, keep=keep, **how).found
        for name, want in expected.items():
            assert (found[name] - want).abs().max() <= 1e-11 * want.abs().max().clamp_min(1), name


def test_without_w_ih_a_projected_lstm_has_a_first_step_of_its_own(emulate):
    of = case("lstm", 6, 2, 20, 5, proj_size=3)
    of.tensors["w_ih"] = torch.eye(20, dtype=torch.float64)
    expected = oracle(of)
    del of.tensors["w_ih"], expected["grad_w_ih"]
    found = emulate(of, torch.float64).found
    for name, want in expected.items():
        assert (found[name] - want).abs().max() <= 1e-11 * want.abs().max().clamp_min(1), name
