"""bl.ops.rnn and the RNN cell's scan: against the reference and stock, gradients, opcheck."""

import pytest
import torch
from cases import plans, relative_error
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning import reference

SIZES = [(1, 1, 1, 1), (5, 3, 2, 4), (50, 16, 1, 20), (12, 5, 7, 33), (3, 70, 3, 8), (9, 2, 2, 130)]
NONLINEARITIES = ["tanh", "relu"]


def make(T, B, I, H, dtype=torch.float64, gain=1.0, seed=0):
    """x, h0, w_ih, w_hh, b_ih, b_hh of an RNN whose recurrent matrix has radius about `gain`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size, scale=1.0):
        return torch.randn(*size, dtype=torch.float64, generator=generator).mul_(scale).to(dtype)

    return (
        draw(T, B, I),
        draw(B, H),
        draw(H, I),
        draw(H, H, scale=gain / H**0.5),
        draw(H),
        draw(H),
    )


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_forward_equals_the_reference(size, nonlinearity):
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 2e-6)):
        inputs = make(*size, dtype)
        wanted = reference.rnn(*(t.double() for t in inputs), nonlinearity=nonlinearity)
        output, hn = bl.ops.rnn(*inputs, nonlinearity)
        assert relative_error(output, wanted) < tolerance
        assert torch.equal(hn, output[-1])
        x, h0, w_ih, w_hh, *_ = inputs
        without = bl.ops.rnn(x, None, w_ih, w_hh, nonlinearity=nonlinearity)[0]
        zero = reference.rnn(x.double(), h0.double() * 0, w_ih.double(), w_hh.double(),
                             nonlinearity=nonlinearity)  # fmt: skip
        assert relative_error(without, zero) < tolerance


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_plan_gives_the_scan_of_the_materialised_jacobians(size, nonlinearity):
    inputs = make(*size)
    output, _ = bl.ops.rnn(*inputs, nonlinearity)
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(output.shape, dtype=output.dtype, generator=generator)
    w_hh = inputs[3]
    jac_t = reference.rnn_jac_t(output, w_hh, nonlinearity)
    g = reference.reverse_scan(jac_t, torch.cat([torch.zeros_like(u[:1]), u]))
    slope = 1 - output**2 if nonlinearity == "tanh" else (output > 0).double()
    # A saturated tanh leaves 1 - h^2 with few digits: errors are relative to what it multiplies.
    scale = g.abs().max()
    for plan in plans(size[0]):
        grad_z, grad_h0 = torch.ops.bppsa.rnn_backward(u, None, output, w_hh, nonlinearity, *plan)
        assert (grad_z - slope * g[1:]).abs().max() < 1e-13 * scale, plan
        assert (grad_h0 - g[0]).abs().max() < 1e-13 * scale, plan


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("algorithm", ["linear", "chunked", "blelloch"])
def test_gradients_of_first_and_second_order(nonlinearity, algorithm):
    inputs = tuple(t.requires_grad_() for t in make(6, 2, 3, 4, seed=3))

    def function(*inputs):
        return bl.ops.rnn(*inputs, nonlinearity, algorithm)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("given", ["both", "grad_output", "grad_hn"])
def test_gradients_of_the_backward_with_parts_missing(given):
    output = bl.ops.rnn(*make(5, 2, 1, 3))[0].requires_grad_()
    u = torch.randn_like(output).requires_grad_() if given != "grad_hn" else None
    last = torch.randn_like(output[0]).requires_grad_() if given != "grad_output" else None
    w_hh = make(5, 2, 1, 3)[3].requires_grad_()

    def function(*inputs):
        tensors = iter(inputs)
        return torch.ops.bppsa.rnn_backward(
            None if u is None else next(tensors),
            None if last is None else next(tensors),
            *tensors, "tanh", "linear", 0, 0,
        )  # fmt: skip

    inputs = tuple(t for t in (u, last, output, w_hh) if t is not None)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_opcheck():
    inputs = tuple(t.requires_grad_() for t in make(5, 2, 3, 4))
    torch.library.opcheck(torch.ops.bppsa.rnn.default, (*inputs, "tanh", "auto"))
    x, _, w_ih, w_hh, _, b_hh = inputs
    torch.library.opcheck(
        torch.ops.bppsa.rnn.default, (x, None, w_ih, w_hh, None, b_hh, "relu", "linear")
    )
    output = bl.ops.rnn(*inputs)[0].detach().requires_grad_()
    arguments = (torch.randn_like(output), None, output, w_hh, "tanh", "chunked", 2, 0)
    torch.library.opcheck(torch.ops.bppsa.rnn_backward.default, arguments)


def test_compiles_whole():
    torch._dynamo.reset()
    inputs = tuple(t.requires_grad_() for t in make(6, 2, 3, 4))
    compiled = torch.compile(lambda *a: bl.ops.rnn(*a)[0].sin(), fullgraph=True)
    found, wanted = compiled(*inputs), bl.ops.rnn(*inputs)[0].sin()
    for a, b in zip(
        torch.autograd.grad(found.sum(), inputs), torch.autograd.grad(wanted.sum(), inputs)
    ):
        assert relative_error(a, b) < 1e-12


def stock_output(x, h0, w_ih, w_hh, b_ih, b_hh, nonlinearity):
    """PyTorch's own RNN as a function of its tensors."""
    weights = [w_ih.clone(), w_hh.clone(), b_ih.clone(), b_hh.clone()]
    operator = getattr(torch, f"rnn_{nonlinearity}")
    return operator(x, h0.unsqueeze(0), weights, True, 1, 0.0, True, False, False)[0]


def gradients_and_output(function, inputs, u):
    leaves = [t.detach().requires_grad_() for t in inputs]
    output = function(*leaves)
    return torch.autograd.grad(output, leaves, u), output.detach()


def oracle_gradients(inputs, output, u, nonlinearity):
    """float64 sequential back-propagation through the states that a float32 forward kept."""
    x, h0, w_ih, w_hh, *_ = (t.double() for t in inputs)
    h, u = output.double(), u.double()
    slope = 1 - h**2 if nonlinearity == "tanh" else (h > 0).double()
    jac_t = reference.rnn_jac_t(h, w_hh, nonlinearity)
    g = reference.reverse_scan(jac_t, torch.cat([torch.zeros_like(u[:1]), u]))
    d, previous = slope * g[1:], torch.cat([h0.unsqueeze(0), h[:-1]])
    bias = d.sum((0, 1))
    return (
        d @ w_ih, g[0], torch.einsum("tbh,tbi->hi", d, x),
        torch.einsum("tbh,tbk->hk", d, previous), bias, bias,
    )  # fmt: skip


def error_ratios(nonlinearity, gain, algorithm, seed, norm):
    """Our error over PyTorch's, each against float64 through its own forward's states.

    Above gain 1 a tanh RNN is chaotic: two float32 forwards part ways, and comparing gradients of
    two trajectories would compare luck. None where PyTorch's gradient is not finite.
    """
    T, B, I, H = 64, 8, 3, 20
    inputs = make(T, B, I, H, torch.float32, gain, seed)
    u = torch.linspace(-1, 1, T * B * H).view(T, B, H)
    theirs, h = gradients_and_output(lambda *a: stock_output(*a, nonlinearity), inputs, u)
    their_truth = oracle_gradients(inputs, h, u, nonlinearity)
    ours, h = gradients_and_output(lambda *a: bl.ops.rnn(*a, nonlinearity, algorithm)[0], inputs, u)
    # At the edge of the range, finite or not depends on the order of a sum.
    assert all(a[b.abs() < 1e36].isfinite().all() for a, b in zip(ours, theirs))
    if not all(t.isfinite().all() for t in theirs):
        return None

    def relative(found, true):
        # Where PyTorch happens to be exact to the last bit, one rounding is allowed.
        size = torch.linalg.vector_norm(true, norm)
        return torch.linalg.vector_norm(found - true, norm) / size + 6e-8

    our_truth = oracle_gradients(inputs, h, u, nonlinearity)
    pairs = zip(ours, our_truth, theirs, their_truth)
    return torch.stack([relative(a, b) / relative(c, d) for a, b, c, d in pairs])


@pytest.mark.parametrize("gain", [0.1, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("algorithm", ["linear", "chunked", "blelloch"])
def test_float32_error_is_at_most_twice_pytorchs(algorithm, nonlinearity, gain):
    """Median over seeds for each gradient: one draw of either error is rounding luck."""
    for norm in (torch.inf, 2):
        ratios = [error_ratios(nonlinearity, gain, algorithm, seed, norm) for seed in range(9)]
        ratios = [r for r in ratios if r is not None]
        if not ratios:
            assert gain > 1 and nonlinearity == "relu"  # PyTorch overflows: finiteness was checked
            continue
        assert (torch.stack(ratios).median(0).values <= 2).all(), ratios


@pytest.mark.parametrize("gain", [0.1, 0.5, 0.9])
def test_float32_error_of_the_whole_path_where_it_is_not_chaotic(gain):
    inputs = make(200, 8, 3, 20, torch.float32, gain)
    u = torch.linspace(-1, 1, 200 * 8 * 20).view(200, 8, 20)
    wide = [t.double() for t in inputs]
    truth, _ = gradients_and_output(reference.rnn, wide, u.double())
    pytorch, _ = gradients_and_output(lambda *a: stock_output(*a, "tanh"), inputs, u)
    ours, _ = gradients_and_output(lambda *a: bl.ops.rnn(*a)[0], inputs, u)
    for found, theirs, true in zip(ours, pytorch, truth):
        for norm in (torch.inf, 2):
            size, error, stock = (
                torch.linalg.vector_norm(t, norm) for t in (true, found - true, theirs - true)
            )
            assert error <= 2 * stock + 1.2e-7 * size, (norm, error / stock)


def test_tanh_is_right_to_the_last_place():
    """All magnitudes, signs and specials, through the only door: a one-step RNN on x alone."""
    for dtype, ulps in ((torch.float32, 2.0), (torch.float64, 2.0)):
        magnitude = torch.logspace(-12, 3, 200_001, dtype=torch.float64)
        x = torch.cat([magnitude, -magnitude]).to(dtype).view(1, -1, 1)
        one, zero = torch.ones(1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype)
        found = bl.ops.rnn(x, None, one, zero)[0]
        wide = torch.cat([x, x, x], -1)[..., :1].expand(-1, -1, 1)
        H = 19
        columns = torch.ones(H, 1, dtype=dtype)
        vectors = bl.ops.rnn(wide, None, columns, torch.zeros(H, H, dtype=dtype))[0]
        assert relative_error(vectors[..., 7:8], found) < torch.finfo(dtype).eps * ulps
        true = torch.tanh(x.double())
        step = torch.finfo(dtype).eps * true.abs()
        assert ((found.double() - true).abs() / step).max() <= ulps
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e30], dtype=dtype)
        result = bl.ops.rnn(special.view(1, -1, 1), None, one, zero)[0].flatten()
        assert result[:4].tolist() == [0.0, 0.0, 1.0, -1.0] and result[4].isnan()
        assert result[5] == 1.0


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_nan_travels(nonlinearity):
    x, *rest = make(6, 2, 2, 20)
    x[2, 0, 1] = torch.nan
    output = bl.ops.rnn(x, *rest, nonlinearity)[0]
    assert output[:2].isfinite().all() and output[2:, 0].isnan().all()
    assert output[:, 1].isfinite().all()


def test_the_same_bits_every_time_and_in_two_threads():
    from concurrent.futures import ThreadPoolExecutor

    def gradients(_):
        inputs = [t.requires_grad_() for t in make(100, 16, 2, 20, torch.float32)]
        bl.ops.rnn(*inputs)[0].square().sum().backward()
        return [t.grad for t in inputs]

    first = gradients(0)
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(gradients, range(6)))
    assert all(torch.equal(a, b) for run in runs for a, b in zip(first, run))


def test_memory_of_a_long_chain_is_a_few_states():
    """T=30,000: a few T*B*H arrays, nothing of T*B*H*H numbers (1.9 GB here)."""
    from torch.profiler import ProfilerActivity, profile

    T, B, H = 30_000, 4, 128
    rnn = nn.RNN(1, H)
    bl.attach(rnn)
    x = torch.rand(T, B, 1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        rnn(x)[0].mean().backward()
    grown = [event.self_cpu_memory_usage for event in profiler.key_averages()]
    assert 0 < sum(size for size in grown if size > 0) < 8 * T * B * H * 4


X, H0, W_IH, W_HH, B_IH, B_HH = make(5, 2, 3, 4)
BAD_CALLS = {
    "no tensor": (([1.0], H0, W_IH, W_HH), TypeError, "x: found list"),
    "two dimensions": ((X[0], H0, W_IH, W_HH), ValueError, r"x: found shape \(2, 3\), wanted"),
    "no steps": ((X[:0], H0, W_IH, W_HH), ValueError, "with T >= 1"),
    "integers": ((X.long(), H0, W_IH, W_HH), TypeError, "x: found dtype torch.int64"),
    "other dtype": ((X.float(), None, W_IH, W_HH), TypeError, "w_ih: found dtype torch.float64"),
    "h0 of one sample": ((X, H0[:1], W_IH, W_HH), ValueError, r"h0: found shape \(1, 4\), wanted"),
    "half a state": ((X, H0[:, :2], W_IH, W_HH), ValueError, "h0: found shape"),
    "short bias": ((X, H0, W_IH, W_HH, B_IH[:1]), ValueError, r"b_ih: found shape \(1,\)"),
    "w_hh not square": ((X, H0, W_IH, W_HH[:, :2]), ValueError, r"w_hh: found shape \(4, 2\)"),
    "other device": ((X, H0.to("meta"), W_IH, W_HH), ValueError, "h0: found on meta"),
    "nonlinearity": ((X, H0, W_IH, W_HH, B_IH, B_HH, "gelu"), ValueError, "found 'gelu', wanted"),
    "algorithm": ((X, H0, W_IH, W_HH, None, None, "tanh", "fast"), ValueError, "found 'fast'"),
}


@pytest.mark.parametrize("arguments, error, message", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_bad_calls_name_argument_found_and_wanted(arguments, error, message):
    with pytest.raises(error, match=message):
        bl.ops.rnn(*arguments)


def test_kernel_arguments_are_checked_below_python_too():
    for bad in ({"h0": H0[:1]}, {"w_hh": W_HH.float()}, {"b_ih": B_IH[:1]}, {"w_ih": W_IH.t()}):
        good = {"h0": H0, "w_ih": W_IH, "w_hh": W_HH, "b_ih": B_IH, "b_hh": B_HH}
        with pytest.raises(RuntimeError, match=f"{next(iter(bad))}: wanted"):
            torch.ops.bppsa.rnn(X, **{**good, **bad}, nonlinearity="tanh", algorithm="auto")
    output = bl.ops.rnn(X, H0, W_IH, W_HH)[0]
    with pytest.raises(RuntimeError, match="grad_output: wanted"):
        torch.ops.bppsa.rnn_backward(output[1:], None, output, W_HH, "tanh", "linear", 0, 0)


def test_what_no_gradient_needs_may_change_in_place():
    """As with PyTorch: w_ih is only kept for the gradient of x."""
    x, h0, w_ih, w_hh, *_ = make(5, 2, 3, 4)
    w_ih.requires_grad_()
    output = bl.ops.rnn(x, h0, w_ih, w_hh)[0]
    wanted = torch.autograd.grad(output.sum(), w_ih, retain_graph=True)[0]
    with torch.no_grad():
        w_ih.zero_()
    assert torch.equal(torch.autograd.grad(output.sum(), w_ih)[0], wanted)


@pytest.mark.parametrize("algorithm", ["linear", "chunked", "blelloch"])
def test_relu_stops_an_infinite_gradient_where_torch_does(algorithm):
    """At dead units sqrt has an infinite slope, and 0 * inf would be a NaN."""
    inputs = make(12, 3, 2, 5)
    leaves = [t.requires_grad_() for t in inputs]
    wanted = torch.autograd.grad(stock_output(*leaves, "relu").sqrt().sum(), leaves)
    output = bl.ops.rnn(*leaves, "relu", algorithm)[0]
    assert (output == 0).any()
    found = torch.autograd.grad(output.sqrt().sum(), leaves)
    for a, b in zip(found, wanted):
        assert b.isfinite().all() and relative_error(a, b) < 1e-12


def test_a_backward_under_autocast_keeps_its_precision():
    leaves = [t.requires_grad_() for t in make(6, 2, 3, 4, torch.float32)]

    def penalty():
        output = bl.ops.rnn(*leaves)[0]
        (first,) = torch.autograd.grad(output.sum(), leaves[1], create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaves)

    with torch.autocast("cpu", torch.bfloat16):
        inside = penalty()
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(inside, penalty()))
