"""bl.ops.rnn, gru and lstm: against the reference and PyTorch; gradients, opcheck, torch.compile.

T steps, B batch, I input, H hidden, P state that is put out.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from support.cases import plans, relative_error
from support.helpers import assert_close, assert_identical
from support.recurrent_layers import (
    ALGORITHMS,
    CELLS,
    NAMES,
    cotangents,
    draw,
    ours,
    results,
    stock,
    true,
    widened,
)

import bppsa_lightning as bl
from bppsa_lightning import planner

EXACT = 1e-10
ULP = torch.finfo(torch.float32).eps

SIZES = {  # T, B, I, H
    "some": (7, 5, 3, 4),
    "ones": (1, 1, 1, 1),
    "one step": (1, 3, 2, 3),
    "one sample": (13, 1, 2, 5),
    "no sample": (4, 0, 2, 3),
    "one unit": (9, 3, 2, 1),
    "above a register": (12, 5, 7, 33),
    "many samples": (3, 70, 3, 8),
    "wide": (5, 2, 2, 130),
    "long": (300, 2, 1, 6),
}

each_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
each_keep = pytest.mark.parametrize("keep", [1, 2])


@pytest.fixture
def keeping(monkeypatch):
    """Sets how much the forward keeps."""
    plan = planner.plan
    return lambda keep: monkeypatch.setattr(
        planner, "plan", lambda request: replace(plan(request), saved=keep)
    )


# --- values ---------------------------------------------------------------------------------


@each_cell
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_equals_the_reference(cell, size, keeping):
    tensors = draw(cell, size)
    incoming = cotangents(cell, tensors)
    for reverse in (False, True):
        wanted = results(true, cell, tensors, incoming, reverse=reverse)
        for keep, algorithm in itertools.product((1, 2), ALGORITHMS):
            keeping(keep)
            found = results(ours, cell, tensors, incoming, reverse=reverse, algorithm=algorithm)
            assert_close(found, wanted, EXACT)


@each_cell
def test_is_not_the_reference_of_another_layer(cell):
    """The comparison can fail: one recurrent weight off by 1e-7 is seen in every gradient."""
    tensors = draw(cell, SIZES["some"])
    incoming = cotangents(cell, tensors)
    wanted = results(true, cell, tensors, incoming)
    tensors["w_hh"][0, 0] += 1e-7
    found = results(ours, cell, tensors, incoming)
    assert all(relative_error(found[name], wanted[name]) > EXACT for name in wanted)


@each_cell
@pytest.mark.parametrize(
    "absent",
    [("h0",), ("c0",), ("h0", "c0"), ("b_ih",), ("b_hh",), ("b_ih", "b_hh"), ("h0", "c0", "b_hh")],
    ids=", ".join,
)
def test_what_may_be_absent(cell, absent):
    tensors = draw(cell, SIZES["some"])
    tensors = {name: t for name, t in tensors.items() if name not in absent}
    incoming = cotangents(cell, tensors)
    for reverse in (False, True):
        wanted = results(true, cell, tensors, incoming, reverse=reverse)
        assert_close(results(ours, cell, tensors, incoming, reverse=reverse), wanted, EXACT)


@each_cell
@each_keep
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_every_plan_and_every_set_of_wanted_gradients(cell, keep, reverse):
    """Below Python, where chunks and levels may be anything and each gradient is asked for."""
    tensors = draw(cell, (13, 3, 2, 5))
    incoming = cotangents(cell, tensors)
    wanted = results(true, cell, tensors, incoming, reverse=reverse)
    operands = [tensors.get(name) for name in NAMES]
    everything = sum(1 << i for i, t in enumerate(operands) if t is not None)

    def gradients(plan, bits):
        output, _, _, kept = torch.ops.bppsa.recurrent(cell.name, *operands, reverse, keep, plan[0])
        return torch.ops.bppsa.recurrent_backward(
            *(cell.name, *(incoming.get(name) for name in ("output", "h_n", "c_n"))),
            *(output, kept, *operands, reverse, *plan, bits),
        )

    def check(found, bits, where):
        for i, name in enumerate(NAMES):
            if bits >> i & 1:
                error = relative_error(found[i], wanted[f"grad of {name}"])
                assert error < EXACT, (where, bits, name, error)
            else:
                assert found[i].numel() == 0, (where, bits, name)

    for plan in plans(13):
        check(gradients(plan, everything), everything, plan)
    for bits in range(everything + 1):
        if bits & ~everything == 0:
            for plan in (("linear", 0, 0), ("chunked", 3, 0)):
                check(gradients(plan, bits), bits, plan)


@each_cell
@each_keep
def test_frozen_tensors_get_no_gradient_and_the_others_the_same(cell, keep, keeping):
    keeping(keep)
    tensors = draw(cell, (5, 2, 2, 3))
    incoming = cotangents(cell, tensors)
    wanted = results(true, cell, tensors, incoming)
    for n in range(1, len(tensors) + 1):
        for learning in itertools.combinations(tensors, n):
            given = {
                name: t.clone().requires_grad_(name in learning) for name, t in tensors.items()
            }
            found = results(ours, cell, given, incoming)
            assert_close(found, {name: wanted[name] for name in found}, EXACT)
            assert len(found) == n + len(incoming)


@each_cell
@each_keep
def test_gradients_that_flow_in_at_some_results_only(cell, keep, keeping):
    keeping(keep)
    tensors = draw(cell, SIZES["some"])
    names = list(cotangents(cell, tensors))
    for n in range(1, len(names) + 1):
        for some in itertools.combinations(names, n):
            incoming = cotangents(cell, tensors, some)
            for reverse in (False, True):
                wanted = results(true, cell, tensors, incoming, reverse=reverse)
                found = results(ours, cell, tensors, incoming, reverse=reverse)
                assert_close(found, wanted, EXACT)


def spread(t):
    """The same numbers, the last dimension's apart."""
    return t.repeat_interleave(2, dim=-1)[..., ::2]


def turned(t):
    """The same numbers, with the first two dimensions' strides exchanged."""
    return t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else spread(t)


@each_cell
@each_algorithm
@pytest.mark.parametrize("view", [spread, turned])
def test_strides(cell, algorithm, view):
    plain = draw(cell, SIZES["some"])
    incoming = cotangents(cell, plain)
    wanted = results(true, cell, plain, incoming)
    found = results(
        ours,
        cell,
        {name: view(t) for name, t in plain.items()},
        {name: view(t) for name, t in incoming.items()},
        algorithm=algorithm,
    )
    assert_close(found, wanted, EXACT)


@each_cell
@each_algorithm
def test_a_gradient_that_is_one_number_everywhere(cell, algorithm):
    """output.sum() sends a number expanded with strides of 0, and mean over time one of them."""
    tensors = draw(cell, SIZES["some"])
    output = true(cell, tensors)["output"]
    for incoming in (
        output.new_ones(()).expand(output.shape),
        torch.randn_like(output[:1]).expand(output.shape),
        torch.randn_like(output[:, :1]).expand(output.shape),
        torch.randn_like(output[..., :1]).expand(output.shape),
    ):
        incoming = {"output": incoming}
        wanted = results(true, cell, tensors, incoming)
        assert_close(results(ours, cell, tensors, incoming, algorithm=algorithm), wanted, EXACT)


# --- float32 --------------------------------------------------------------------------------


def error_ratios(cell, gain, algorithm, seed, norm):
    """Our error over PyTorch's, of each result and gradient; (results,)."""
    tensors = draw(cell, (64, 8, 3, 20), torch.float32, gain, seed=seed)
    incoming = cotangents(cell, tensors)
    truth = results(stock, cell, widened(tensors), widened(incoming))
    pytorch = results(stock, cell, tensors, incoming)
    found = results(ours, cell, tensors, incoming, algorithm=algorithm)

    def relative(t, name):
        # A unit in the last place is luck: PyTorch may happen to be exact.
        error, size = t[name] - truth[name], truth[name]
        return torch.linalg.vector_norm(error, norm) / torch.linalg.vector_norm(size, norm) + ULP

    return torch.stack([relative(found, name) / relative(pytorch, name) for name in truth])


@each_cell
@each_algorithm
@pytest.mark.parametrize("gain", [0.1, 0.5, 1.0])
def test_float32_error_is_at_most_twice_pytorchs(cell, algorithm, gain):
    """Median over seeds for each result: one draw of either error is rounding luck."""
    for norm in (torch.inf, 2):
        ratios = [error_ratios(cell, gain, algorithm, seed, norm) for seed in range(7)]
        median = torch.stack(ratios).median(0).values
        assert (median <= 2).all(), median


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_activations_are_right_to_the_last_places(dtype):
    """All magnitudes and signs through the only door: one step whose state is the activation."""
    magnitude = torch.logspace(-12, 3, 20_001, dtype=torch.float64)
    x = torch.cat([magnitude, -magnitude]).to(dtype).view(1, -1, 1)
    for H in (1, 19):  # a scalar's code, and a register's with its rest
        wide, zero = torch.ones(H, 1, dtype=dtype), torch.zeros(H, H, dtype=dtype)
        states = x.new_ones(x.shape[1], H)
        found = {
            torch.tanh: bl.ops.rnn(x, None, wide, zero)[1],
            # The forget gate alone sees x: c_1 = σ(x) c_0.
            torch.sigmoid: bl.ops.lstm(
                *(x, None, states, torch.cat([0 * wide, wide, 0 * wide, 0 * wide])),
                torch.cat([zero] * 4),
            )[2],
        }
        for function, values in found.items():
            truth = function(x.double()).view(-1, 1).expand(-1, H)
            floor = torch.finfo(dtype).tiny  # smaller numbers count as zero
            step = torch.finfo(dtype).eps * truth.abs() + floor
            ulps = ((values.double() - truth).abs() / step).max()
            assert ulps <= 3, (function, H, ulps)
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e30], dtype=dtype)
        values = bl.ops.rnn(special.view(1, -1, 1), None, wide, zero)[1]
        for column in values.t().tolist():
            assert column[:4] == [0.0, 0.0, 1.0, -1.0] and column[5] == 1.0
            assert column[4] != column[4]


# --- the ends of the range ------------------------------------------------------------------


@each_cell
@each_algorithm
@each_keep
def test_exploding_gradients_are_finite_where_pytorchs_are(cell, algorithm, keep, keeping):
    keeping(keep)
    for seed in range(2):
        tensors = draw(cell, (1024, 2, 2, 8), torch.float32, gain=3.0, seed=seed)
        incoming = cotangents(cell, tensors)
        theirs = results(stock, cell, tensors, incoming)
        found = results(ours, cell, tensors, incoming, algorithm=algorithm)
        for name, want in theirs.items():
            # At the edge of the range, finite or not depends on the order of a sum.
            assert found[name][want.abs() < 1e36].isfinite().all(), (seed, name)


@each_algorithm
def test_relu_stops_an_infinite_gradient_where_torch_does(algorithm):
    """At dead units sqrt has an infinite slope, and 0 * inf would be a NaN."""
    cell = CELLS["RNN-relu"]
    tensors = {n: t.requires_grad_() for n, t in draw(cell, (12, 3, 2, 5)).items()}
    leaves = list(tensors.values())
    wanted = torch.autograd.grad(stock(cell, tensors)["output"].sqrt().sum(), leaves)
    output = ours(cell, tensors, algorithm)["output"]
    assert (output == 0).any()
    found = torch.autograd.grad(output.sqrt().sum(), leaves)
    for a, b in zip(found, wanted):
        assert b.isfinite().all() and relative_error(a, b) < 1e-12


@each_algorithm
def test_a_relu_that_grows_to_infinity_does_as_in_torch(algorithm):
    cell = CELLS["RNN-relu"]
    tensors = draw(cell, (300, 2, 2, 4), torch.float32)
    tensors["w_hh"] = tensors["w_hh"].abs() * 3
    incoming = cotangents(cell, tensors, ["h_n"])
    wanted = results(stock, cell, tensors, incoming)
    found = results(ours, cell, tensors, incoming, algorithm=algorithm)
    assert wanted["h_n"].isinf().all()
    assert torch.equal(found["output"].isinf(), wanted["output"].isinf())
    for name, want in wanted.items():
        assert found[name][want.abs() < 1e36].isfinite().all(), name


@each_cell
def test_nan_travels(cell):
    tensors = draw(cell, (6, 2, 2, 20))
    tensors["x"][2, 0, 1] = torch.nan
    output = ours(cell, tensors)["output"]
    assert output[:2].isfinite().all() and output[2:, 0].isnan().all()
    assert output[:, 1].isfinite().all()


@each_cell
@pytest.mark.parametrize("H", [4, 8, 12, 20, 33])
@pytest.mark.parametrize("inputs", [2, 300])
def test_an_infinite_input_saturates_gates_as_in_torch(cell, H, inputs):
    """Weights that stand for none (a GRU has three for x and three for h) are not met by it."""
    tensors = draw(cell, (5, 3, inputs, H))
    tensors["x"][2, 0, 1] = torch.inf
    wanted, found = stock(cell, tensors)["output"], ours(cell, tensors)["output"]
    torch.testing.assert_close(found, wanted, rtol=EXACT, atol=EXACT, equal_nan=True)


@each_cell
@each_algorithm
def test_a_gradient_that_fades_below_the_smallest_number(cell, algorithm):
    """Numbers below the smallest normal one count as zero, and nothing else is lost."""
    tensors = draw(cell, (200, 3, 2, 8), torch.float32, gain=0.1)
    incoming = cotangents(cell, tensors, ["h_n"])
    truth = results(true, cell, widened(tensors), widened(incoming))
    found = results(ours, cell, tensors, incoming, algorithm=algorithm)
    for name, want in truth.items():
        error = (found[name] - want).abs()
        size = want.abs().amax(list(range(want.dim()))[-2:], keepdim=True)  # of a step
        assert (error <= 1e-4 * size + 1e-37).all(), name


@each_cell
@pytest.mark.parametrize("flush", [False, True])
def test_the_floating_point_mode_is_left_as_it_was(cell, flush):
    small = torch.full((1 << 17,), 1e-40)  # enough for all threads
    tensors = draw(cell, (50, 16, 2, 8), torch.float32)
    if not torch.set_flush_denormal(flush):
        pytest.skip("this processor has no such mode")
    try:
        results(ours, cell, tensors, cotangents(cell, tensors))
        assert ((small * 1)[:100] == 0).all() == flush
        if not flush:
            assert (small * 1 != 0).all()
    finally:
        torch.set_flush_denormal(False)


# --- derivatives ----------------------------------------------------------------------------


@each_cell
@each_algorithm
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_gradients_of_first_and_second_order(cell, algorithm, reverse, keeping):
    tensors = draw(cell, (4, 2, 2, 2))

    def function(*operands):
        return tuple(ours(cell, dict(zip(tensors, operands)), algorithm, reverse).values())

    leaves = [t.requires_grad_() for t in tensors.values()]
    for keep in (1, 2):
        keeping(keep)
        assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


@each_cell
@each_keep
def test_second_order_of_some_tensors_by_some_others(cell, keep, keeping):
    keeping(keep)
    plain = draw(cell, (5, 2, 2, 3))

    def penalty(layer, first, second):
        tensors = {n: t.clone().requires_grad_(n in (first, second)) for n, t in plain.items()}
        output = layer(cell, tensors)["output"].square().sum()
        (inner,) = torch.autograd.grad(output, tensors[first], create_graph=True)
        return torch.autograd.grad(inner.square().sum(), tensors[second])[0]

    for first, second in itertools.permutations(plain, 2):
        found, wanted = penalty(ours, first, second), penalty(true, first, second)
        assert relative_error(found, wanted) < EXACT, (first, second)


@each_cell
def test_what_no_gradient_needs_may_change_in_place(cell):
    """x is kept for the gradient of w_ih, w_ih for that of x; a second derivative needs both."""
    plain = draw(cell, SIZES["some"])
    for changing, learning in (("x", {"h0", "w_hh"}), ("w_ih", {"h0", "w_hh", "w_ih"})):

        def output(changing=changing, learning=learning):
            tensors = {n: t.clone().requires_grad_(n in learning) for n, t in plain.items()}
            found = ours(cell, tensors)["output"].sum()
            return found, tensors, [tensors[n] for n in sorted(learning)]

        found, _, leaves = output()
        wanted = torch.autograd.grad(found, leaves)
        found, tensors, leaves = output()
        with torch.no_grad():
            tensors[changing].zero_()
        gradients = torch.autograd.grad(found, leaves, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(gradients, wanted))
        with pytest.raises(RuntimeError, match="modified in place"):
            torch.autograd.grad(found, leaves, create_graph=True)


@each_cell
@pytest.mark.parametrize("name", ["w_hh", "output"])
def test_what_a_gradient_needs_may_not_change_in_place(cell, name):
    tensors = {n: t.requires_grad_() for n, t in draw(cell, SIZES["some"]).items()}
    output = ours(cell, tensors)["output"]
    loss = output.square().sum()
    with torch.no_grad():
        (tensors | {"output": output})[name].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@each_cell
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_backward_under_autocast_keeps_its_precision(cell, create_graph):
    tensors = {n: t.requires_grad_() for n, t in draw(cell, (6, 2, 3, 4), torch.float32).items()}

    def gradients():
        output = ours(cell, tensors)["output"].sum()
        return torch.autograd.grad(output, list(tensors.values()), create_graph=create_graph)

    with torch.autocast("cpu", torch.bfloat16):
        inside = gradients()
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(inside, gradients()))


# --- torch's own checks ---------------------------------------------------------------------


@each_cell
@each_keep
def test_opcheck_of_the_forward(cell, keep):
    tensors = draw(cell, (5, 2, 3, 4))
    operands = [tensors[name].requires_grad_() if name in tensors else None for name in NAMES]
    without = [None if name in ("h0", "c0", "b_ih") else t for name, t in zip(NAMES, operands)]
    forward = torch.ops.bppsa.recurrent.default
    torch.library.opcheck(forward, (cell.name, *operands, False, keep, "auto"))
    torch.library.opcheck(forward, (cell.name, *without, True, keep, "linear"))


@each_cell
@each_keep
def test_opcheck_of_the_backward(cell, keep):
    tensors = draw(cell, (5, 2, 3, 4))
    operands = [tensors.get(name) for name in NAMES]
    output, _, _, kept = torch.ops.bppsa.recurrent(cell.name, *operands, False, keep, "auto")
    incoming = [cotangents(cell, tensors).get(name) for name in ("output", "h_n", "c_n")]
    everything = sum(1 << i for i, t in enumerate(operands) if t is not None)
    for given, wanted in ((incoming, everything), ([incoming[0], None, None], 0b11001)):
        arguments = (*given, output, kept, *operands, False, "chunked", 2, 0, wanted)
        torch.library.opcheck(torch.ops.bppsa.recurrent_backward.default, (cell.name, *arguments))


@each_cell
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiles_whole(cell, dynamic):
    torch._dynamo.reset()
    backend = "inductor" if cell.projected else "aot_eager"
    compiled = torch.compile(ours, fullgraph=True, dynamic=dynamic, backend=backend)
    for T in (5, 9):
        tensors = draw(cell, (T, 2, 3, 4))
        incoming = cotangents(cell, tensors)
        wanted = results(ours, cell, tensors, incoming)
        assert_close(results(compiled, cell, tensors, incoming), wanted, 1e-12)


# --- whoever calls, whenever ----------------------------------------------------------------


@each_cell
@each_algorithm
def test_the_same_bits_every_time_and_in_two_threads(cell, algorithm):
    def run(_):
        tensors = draw(cell, (100, 16, 2, 20), torch.float32)
        return results(ours, cell, tensors, cotangents(cell, tensors), algorithm=algorithm)

    first = run(0)
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(run, range(4)):
            assert_identical(found, first)


@each_cell
def test_logs_each_backward(cell):
    tensors = draw(cell, SIZES["some"])
    P = tensors["w_hh"].shape[1]
    with bl.ops.scan_log() as log:
        results(ours, cell, tensors, cotangents(cell, tensors), algorithm="chunked")
    ((name, size, plan),) = log.scans
    assert CELLS[name].name == cell.name and size == (7, 5, P) and plan.algorithm == "chunked"


# --- wrong calls ----------------------------------------------------------------------------

WRONG = {  # the argument, what it is changed to, the error
    "no tensor": ("x", lambda t: [1.0], TypeError, "x: found list, wanted a torch.Tensor"),
    "two dimensions": ("x", lambda t: t[0], ValueError, r"x: found shape \(5, 3\), wanted"),
    "no steps": ("x", lambda t: t[:0], ValueError, "x: found .* with T >= 1"),
    "integers": ("x", lambda t: t.long(), TypeError, "x: found dtype torch.int64"),
    "other dtype": ("w_ih", lambda t: t.float(), TypeError, "w_ih: found dtype torch.float32"),
    "other dtype of w_hh": ("w_hh", lambda t: t.float(), TypeError, "w_hh: found dtype"),
    "no weights": ("w_hh", lambda t: None, TypeError, "w_hh: found NoneType, wanted a torch"),
    "h0 of one sample": ("h0", lambda t: t[:1], ValueError, "h0: found shape"),
    "a wide h0": ("h0", lambda t: torch.cat([t, t], 1), ValueError, "h0: found shape"),
    "h0 on another device": ("h0", lambda t: t.to("meta"), ValueError, "h0: found on meta"),
    "a short bias": ("b_ih", lambda t: t[:-1], ValueError, "b_ih: found shape"),
    "a bias as a list": ("b_hh", lambda t: t.tolist(), TypeError, "b_hh: found list"),
    "narrow w_ih": ("w_ih", lambda t: t[:, :2], ValueError, "w_ih: found shape"),
    "w_hh of one dimension": ("w_hh", lambda t: t[0], ValueError, "w_hh: found shape"),
    "w_hh of no units": ("w_hh", lambda t: t[:0], ValueError, "w_hh: found shape"),
    "w_hh of other rows": ("w_hh", lambda t: t[:-1], ValueError, "w_hh: found shape|w_hr"),
}


@each_cell
@pytest.mark.parametrize("name, change, error, message", WRONG.values(), ids=WRONG.keys())
def test_wrong_calls_name_argument_found_and_wanted(cell, name, change, error, message):
    tensors = draw(cell, SIZES["some"])
    with pytest.raises(error, match=message):
        ours(cell, tensors | {name: change(tensors[name])})


@each_cell
def test_a_call_without_w_ih(cell):
    tensors = draw(cell, SIZES["some"]) | {"w_ih": None}
    with pytest.raises(TypeError, match="w_ih: found NoneType, wanted a torch.Tensor"):
        ours(cell, tensors)


def test_wrong_settings_name_argument_found_and_wanted():
    x, h0, w_ih, w_hh, *_ = draw(CELLS["RNN-tanh"], SIZES["some"]).values()
    with pytest.raises(ValueError, match="nonlinearity: found 'gelu', wanted"):
        bl.ops.rnn(x, h0, w_ih, w_hh, nonlinearity="gelu")
    with pytest.raises(ValueError, match="algorithm: found 'fast', wanted"):
        bl.ops.rnn(x, h0, w_ih, w_hh, algorithm="fast")
    with pytest.raises(TypeError, match="algorithm: found int, wanted str"):
        bl.ops.rnn(x, h0, w_ih, w_hh, algorithm=3)


@pytest.mark.parametrize("name", ["c0", "w_hr"])
def test_wrong_calls_of_an_lstm(name):
    cell = CELLS["LSTM projected"]
    tensors = draw(cell, SIZES["some"])
    for change, error, said in (
        (lambda t: t[:-1], ValueError, "found shape"),
        (lambda t: t.float(), TypeError, "found dtype torch.float32"),
        (lambda t: t.to("meta"), ValueError, "found on meta"),
        (lambda t: 3.0, TypeError, "found float"),
    ):
        with pytest.raises(error, match=f"{name}: {said}"):
            ours(cell, tensors | {name: change(tensors[name])})
    w_hr = tensors.pop("w_hr")
    with pytest.raises(ValueError, match=r"w_hh: found shape \(16, 2\), wanted \(16, 4\)"):
        ours(cell, tensors)
    # Once, the kernel took an empty projection for none, and wrote the states over c_n.
    nothing = tensors | {"h0": None, "w_hh": tensors["w_hh"][:, :0], "w_hr": w_hr[:0]}
    with pytest.raises(ValueError, match=r"w_hh: found shape \(16, 0\), wanted .* P >= 1"):
        ours(cell, nothing)


@each_cell
def test_kernel_arguments_are_checked_below_python_too(cell):
    tensors = draw(cell, SIZES["some"])

    def forward(keep=2, **changed):
        operands = [{**tensors, **changed}.get(name) for name in NAMES]
        return torch.ops.bppsa.recurrent(cell.name, *operands, False, keep, "auto")

    h0, w_hh, b_ih, w_ih = (tensors[name] for name in ("h0", "w_hh", "b_ih", "w_ih"))
    for changed in (
        {"h0": h0[:1]},
        {"w_hh": w_hh.float()},
        {"b_ih": b_ih[:1]},
        {"w_ih": spread(w_ih)},
    ):
        with pytest.raises(RuntimeError, match=f"{next(iter(changed))}: wanted"):
            forward(**changed)
    with pytest.raises(RuntimeError, match="keep: found 3"):
        forward(keep=3)
    output, _, _, kept = forward()
    operands = [tensors.get(name) for name in NAMES]
    rest = (output, kept, *operands, False)
    backward = torch.ops.bppsa.recurrent_backward
    with pytest.raises(RuntimeError, match="grad_output: wanted"):
        backward(cell.name, output[1:], None, None, *rest, "linear", 0, 0, 1)
    with pytest.raises(RuntimeError, match="algorithm: found 'fast'"):
        backward(cell.name, output, None, None, *rest, "fast", 0, 0, 1)
    with pytest.raises(RuntimeError, match="chunk: found 0"):
        backward(cell.name, output, None, None, *rest, "chunked", 0, 0, 1)


@pytest.mark.parametrize("cell", [c for c in CELLS.values() if c.name != "rnn_relu"], ids=str)
@pytest.mark.parametrize("H", [1, 5, 20, 23])
def test_what_saturates_stays_apart(cell, H):
    """Infinite inputs saturate gates; kernels pad H, and infinity times nothing is no number."""
    P = max(1, H // 2) if cell.projected else H
    torch.manual_seed(0)
    kind = {"rnn_tanh": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell.name]
    layer = kind(3, H, **({"proj_size": P} if P != H else {}))
    x = torch.randn(6, 3, 3)
    x[2, 1, 0], x[4, 2, 2] = torch.inf, -torch.inf
    found = []
    for attached in (False, True):
        if attached:
            bl.attach(layer)
        layer.zero_grad()
        output = layer(x)[0]
        output.sum().backward()
        # The gradient of W_ih holds 0 * inf in PyTorch, too.
        found.append((output, layer.weight_hh_l0.grad, layer.bias_ih_l0.grad))
    for by_torch, by_scan in zip(*found, strict=True):
        torch.testing.assert_close(by_scan, by_torch, equal_nan=True, rtol=1e-4, atol=1e-5)
        assert by_scan.isfinite().all()
