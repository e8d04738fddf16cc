"""bl.jacobians: against torch.func.jacrev over random settings; CSR invariants; errors."""

import pickle
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cases import DEVICES
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import bppsa_lightning as bl
from bppsa_lightning import jacobians as J
from bppsa_lightning.jacobians import device_copies as devices
from bppsa_lightning.jacobians.cache import PatternCache, patterns
from bppsa_lightning.reference import transposed_jacobian

quick = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**31)
dtypes = st.sampled_from([torch.float64, torch.float32])


def pairs(least, most):
    number = st.integers(least, most)
    return st.one_of(number, st.tuples(number, number))


def both(value):
    return (value, value) if isinstance(value, int) else value


def randn(*size, seed=0, dtype=torch.float64):
    return torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def check(found, function, x, device="cpu"):
    """`found` on `device` is valid CSR and the transposed Jacobian of `function` at x."""
    assert all(t.device.type == device for t in (found, found.values(), found.col_indices()))
    found, x = found.cpu(), x.cpu()
    assert found.layout == torch.sparse_csr and found.crow_indices().dtype == torch.int32
    assert found.dtype == x.dtype and not found.requires_grad
    torch._validate_sparse_csr_tensor_args(
        found.crow_indices(), found.col_indices(), found.values(), found.shape
    )
    J.Pattern.of(found)
    wanted = transposed_jacobian(function, x.double())
    assert found.shape == wanted.shape
    tolerance = 1e-13 if x.dtype == torch.float64 else 2e-6
    torch.testing.assert_close(found.to_dense().double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@quick
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    pairs(1, 3),
    st.one_of(pairs(0, 3), st.sampled_from(["same", "valid"])),
    pairs(1, 3),
    st.sampled_from([1.0, 0.5, 0.0]),
    dtypes,
    seeds,
)
def test_conv2d(device, channels, size, kernel, stride, padding, dilation, density, dtype, seed):
    groups, c_in, c_out = channels
    if padding == "same":
        stride = 1
    numbers = (0, 0) if isinstance(padding, str) else both(padding)
    if padding != "same":
        for n, k, p, d in zip(size, kernel, numbers, both(dilation)):
            assume(n + 2 * p >= d * (k - 1) + 1)
    weight = randn(groups * c_out, c_in, *kernel, seed=seed, dtype=dtype)
    weight *= torch.rand(weight.shape, generator=torch.Generator().manual_seed(seed)) < density
    x = randn(groups * c_in, *size, seed=seed + 1, dtype=dtype)
    settings = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)

    def function(x):
        return F.conv2d(x.unsqueeze(0), weight.double(), **settings)

    found = J.conv2d(weight.to(device), size, **settings)
    check(found, function, x, device)
    assert bool((found.values() != 0).all())
    kept = J.conv2d(weight.to(device), x.shape, **settings, keep_zeros=True)
    check(kept, function, x, device)
    assert kept.values().numel() == J.conv2d(
        torch.ones_like(weight), (9, *x.shape), **settings
    ).values().numel()  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@quick
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3),
    seeds,
)  # fmt: skip
def test_conv1d(device, channels, length, kernel, stride, padding, dilation, seed):
    groups, c_in, c_out = channels
    assume(length + 2 * padding >= dilation * (kernel - 1) + 1)
    weight, x = randn(groups * c_out, c_in, kernel, seed=seed), randn(groups * c_in, length)
    rest = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    for size in (length, (length,), x.shape, (5, *x.shape)):
        found = J.conv1d(weight.to(device), size, **rest)
        check(found, lambda x: F.conv1d(x[None], weight, **rest), x, device)
    one_tuples = {k: (v,) if k != "groups" else v for k, v in rest.items()}
    found = J.conv1d(weight.to(device), length, **one_tuples)
    check(found, lambda x: F.conv1d(x[None], weight, **rest), x, device)


@pytest.mark.parametrize("device", DEVICES)
@quick
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1.0, 0.3]), dtypes, seeds)
def test_linear(device, inputs, outputs, density, dtype, seed):
    weight = randn(outputs, inputs, seed=seed, dtype=dtype)
    weight *= torch.rand(weight.shape, generator=torch.Generator().manual_seed(seed)) < density
    x = randn(inputs, dtype=dtype)
    check(J.linear(weight.to(device)), lambda x: F.linear(x, weight.double()), x, device)
    assert J.linear(weight).values().numel() == int((weight != 0).sum())
    assert J.linear(weight, keep_zeros=True).values().numel() == weight.numel()


@pytest.mark.parametrize("device", DEVICES)
def test_a_layer_s_pattern_takes_the_weights_of_each_step(device):
    mask = randn(6, 4, 3, 3).abs() > 1
    jacobian = J.conv2d_pattern(mask, (5, 6), padding=1)
    assert jacobian.output_size == (6, 5, 6) and jacobian.pattern.sparsity > 0.5
    for seed in (1, 2):
        weight = randn(6, 4, 3, 3, seed=seed) * mask
        found = jacobian.csr(weight.to(device)).cpu()
        assert torch.equal(found.to_dense(), J.conv2d(weight, (5, 6), padding=1).to_dense())
    assert J.conv1d_pattern(mask[:, :, 0], 7).output_size == (6, 5)
    assert J.linear_pattern(mask[:, :, 0, 0]).output_size == (6,)


ELEMENTWISE = [
    (J.relu, F.relu),
    (J.leaky_relu, F.leaky_relu),
    (lambda x: J.leaky_relu(x, 0.3), lambda x: F.leaky_relu(x, 0.3)),
    (J.tanh, torch.tanh),
    (J.sigmoid, torch.sigmoid),
    (J.silu, F.silu),
    (J.gelu, F.gelu),
    (lambda x: J.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ours, stock", ELEMENTWISE)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 7), (67,), (0,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_elementwise(ours, stock, shape, dtype, device):
    x = (randn(*shape, dtype=dtype) * 3).to(device)
    check(ours(x), stock, x, device)
    if len(shape) == 2:
        check(ours(x.T), stock, x.T, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ours, stock", ELEMENTWISE)
def test_elementwise_beyond_a_block_and_at_the_edges(ours, stock, device):
    edges = [0.0, -0.0, 1e-300, -1e-300, 50.0, -50.0, 800.0, -800.0, float("inf"), float("nan")]
    x = torch.cat([torch.tensor(edges, dtype=torch.float64), randn(9001) * 5])
    x = x[x.isfinite() | torch.tensor(ours in (J.relu, J.leaky_relu))]
    y = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(stock(y).sum(), y)
    found = ours(x.to(device)).values().cpu()
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15, equal_nan=True)


@st.composite
def pools(draw):
    kernel = draw(pairs(1, 4))
    size = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    stride = draw(st.one_of(st.none(), pairs(1, 4)))
    padding = tuple(draw(st.integers(0, k // 2)) for k in both(kernel))
    return kernel, size, stride, padding, draw(st.booleans())


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=200, deadline=None)
@given(pools(), pairs(1, 3), st.integers(1, 3), dtypes, seeds, st.booleans())
def test_max_pool2d(device, pool, dilation, channels, dtype, seed, ties):
    kernel, size, stride, padding, ceil_mode = pool
    for n, k, p, d in zip(size, both(kernel), padding, both(dilation)):
        assume(n + 2 * p >= d * (k - 1) + 1)
    x = randn(channels, *size, seed=seed, dtype=dtype)
    if ties:
        x = x.round()

    def function(x):
        return F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode)

    # A dilated window can jump over a narrow image; PyTorch's gradient then goes out of bounds.
    assume(function(x).isfinite().all())
    found = J.max_pool2d(x.to(device), kernel, stride, padding, dilation, ceil_mode)
    check(found, function, x, device)


@pytest.mark.parametrize("device", DEVICES)
def test_max_pool2d_of_a_batch(device):
    x = randn(3, 2, 6, 5)
    check(J.max_pool2d(x.to(device), 3, 1, 1), lambda x: F.max_pool2d(x, 3, 1, 1), x, device)
    jacobian = J.max_pool2d_pattern((2, 6, 5), 3, 1, 1)
    assert jacobian.values(x[:0].to(device)).shape == (0, jacobian.pattern.nnz)
    batch = jacobian.pattern.csr(jacobian.values(x.to(device))).cpu()
    assert batch.shape == (3, 60, 60) and jacobian.output_size == (2, 6, 5)
    for one, sample in zip(batch.to_dense(), x):
        assert torch.equal(one, J.max_pool2d(sample, 3, 1, 1).to_dense())


@pytest.mark.parametrize("device", DEVICES)
# 62 columns: of 2 x 2 windows 31 a row, which meets vectors of every width.
@pytest.mark.parametrize(
    "kernel, size", [(2, (6, 8)), (3, (7, 7)), (2, (7, 5)), (2, (4, 62)), (2, (2, 2))], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_max_pool2d_takes_nan_and_infinities_where_pytorch_does(kernel, size, dtype, device):
    nan, inf = float("nan"), float("inf")
    draw = torch.randint(0, 5, (40, *size), generator=torch.Generator().manual_seed(0))
    x = torch.tensor([nan, -inf, inf, 0.0, 1.0], dtype=dtype)[draw]
    y = x.clone().requires_grad_()
    found = J.max_pool2d(x.to(device), kernel).cpu()
    out = F.max_pool2d(y, kernel)
    cotangent = randn(*out.shape, dtype=dtype)
    (wanted,) = torch.autograd.grad(out, y, cotangent)
    assert torch.equal(found @ cotangent.flatten(), wanted.flatten())


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=100, deadline=None)
@given(
    pools(), st.integers(1, 3), st.booleans(), st.sampled_from([None, None, 3, -2]), dtypes, seeds
)
def test_avg_pool2d(device, pool, channels, count_include_pad, divisor_override, dtype, seed):
    kernel, size, stride, padding, ceil_mode = pool
    for n, k, p in zip(size, both(kernel), padding):
        assume(n + 2 * p >= k)
    x = randn(channels, *size, seed=seed, dtype=dtype)
    rest = (kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)
    found = J.avg_pool2d(x.shape, *rest, dtype=dtype, device=device)
    check(found, lambda x: F.avg_pool2d(x, *rest), x, device)


@pytest.mark.parametrize("device", DEVICES)
@quick
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)), pairs(1, 10), dtypes, seeds
)
def test_adaptive_avg_pool2d(device, size, output, dtype, seed):
    x = randn(*size, seed=seed, dtype=dtype)
    found = J.adaptive_avg_pool2d(size, output, dtype=dtype, device=device)
    check(found, lambda x: F.adaptive_avg_pool2d(x, output), x, device)


def test_adaptive_avg_pool2d_keeps_a_size_that_is_none():
    x = randn(2, 5, 6)
    found = J.adaptive_avg_pool2d(x.shape, (None, 4), dtype=x.dtype)
    check(found, lambda x: F.adaptive_avg_pool2d(x, (None, 4)), x)


@pytest.mark.parametrize("device", DEVICES)
def test_flatten_dropout_and_batch_norm(device):
    x = randn(3, 4, 5)
    check(J.flatten(x.shape, x.dtype, device), lambda x: x.flatten(), x, device)
    mask = randn(3, 4, 5, seed=1) > 0
    there = mask.to(device)
    check(J.dropout(there, 0.3, x.dtype), lambda x: x * mask / 0.7, x, device)
    check(J.dropout(there & False, 1.0, x.dtype), lambda x: x * 0.0, x, device)
    mean, var, weight = randn(3), randn(3).abs(), randn(3, seed=4)
    for w in (None, weight):
        found = J.batch_norm(x.shape, var.to(device), None if w is None else w.to(device), 1e-3)

        def function(x, w=w):
            return F.batch_norm(x[None], mean, var, w, None, eps=1e-3)

        check(found, function, x, device)


def test_table_1_of_the_paper():
    x = torch.randn(64, 32, 32)
    conv = J.conv2d(torch.randn(64, 3, 3, 3), (32, 32), padding=1)
    found = [J.Pattern.of(m).sparsity for m in (conv, J.relu(x), J.max_pool2d(x, 2))]
    assert [round(s, 5) for s in found] == [0.99157, 0.99998, 0.99994]


def test_patterns_of_a_batch_are_shared():
    pattern = J.Pattern.diagonal(4)
    values = randn(3, 4)
    batch = pattern.csr(values)
    assert torch.equal(batch.to_dense(), torch.diag_embed(values))
    assert batch.values().data_ptr() == values.data_ptr()
    assert pattern.nnz == 4 and pattern.sparsity == 0.75 and "nnz=4" in repr(pattern)


W = torch.randn(4, 2, 3, 3)
X = torch.randn(2, 6, 6)
REFUSED = [
    (lambda: J.conv2d([1], (5, 5)), TypeError, "weight: found list"),
    (lambda: J.conv2d(W.half(), (5, 5)), TypeError, "weight: found dtype torch.float16"),
    (lambda: J.conv2d(W.to_sparse(), (5, 5)), TypeError, "weight: found layout"),
    (lambda: J.conv2d(W.to("meta"), (5, 5)), ValueError, "weight: found on meta"),
    (lambda: J.conv2d(W[0], (5, 5)), ValueError, r"weight: found shape \(2, 3, 3\)"),
    (lambda: J.conv2d(W, (5,)), ValueError, r"input_size: found \(5,\)"),
    (lambda: J.conv2d(W, (3, 5, 5)), ValueError, r"input_size: found \(3, 5, 5\).*\(2, H, W\)"),
    (lambda: J.conv2d(W, (2, 5)), ValueError, "input_size: found 2, with padding 2"),
    (lambda: J.conv2d(W, (5, 5), stride=0), ValueError, "stride: found 0"),
    (lambda: J.conv2d(W, (5, 5), padding=(1, 2, 3)), ValueError, "padding: found"),
    (lambda: J.conv2d(W, (5, 5), padding="full"), ValueError, "padding: found 'full'"),
    (lambda: J.conv2d(W, (5, 5), 2, "same"), ValueError, "padding: found 'same' with stride"),
    (lambda: J.conv2d(W, (5, 5), groups=3), ValueError, "groups: found 3"),
    (lambda: J.conv2d_pattern(W, (5, 5)), TypeError, "keep: found torch.float32"),
    (lambda: J.conv2d_pattern(W != 0, (5, 5)).values(W[:1]), ValueError, "weight: found shape"),
    (lambda: J.conv2d_pattern(W[0] != 0, (5, 5)), ValueError, r"keep: found shape \(2, 3, 3\)"),
    (lambda: J.conv1d(W, 5), ValueError, "weight: found shape"),
    (lambda: J.conv1d(W[0], (1, 2, 3, 4)), ValueError, "input_size: found"),
    (lambda: J.conv1d(W[0], 5, stride=(1, 1)), ValueError, "stride: found"),
    (lambda: J.linear(W), ValueError, "weight: found shape"),
    (lambda: J.relu(1.0), TypeError, "x: found float"),
    (lambda: J.relu(torch.ones(2, dtype=torch.int64)), TypeError, "x: found dtype"),
    (lambda: J.gelu(X, "sinh"), ValueError, "approximate: found 'sinh'"),
    (lambda: J.elementwise_values("exp", X), ValueError, "function: found 'exp'"),
    (lambda: J.max_pool2d(X[0], 2), ValueError, "x: found shape"),
    (lambda: J.max_pool2d(X, 2, padding=2), ValueError, "padding: found 2, wanted at most half"),
    (lambda: J.max_pool2d(X, 7), ValueError, "input_size: found 6"),
    (lambda: J.max_pool2d(X, (2, 0)), ValueError, "kernel_size: found"),
    (lambda: J.max_pool2d_pattern((6, 6), 2), ValueError, "input_size: found"),
    (lambda: J.max_pool2d_pattern((2, 6, 6), 2).values(X[:1]), ValueError, "x: found shape"),
    (lambda: J.avg_pool2d((2, 6, 6), 2, divisor_override=0), ValueError, "divisor_override"),
    (lambda: J.avg_pool2d((2, 6, 6), 2, dtype=torch.int64), TypeError, "dtype: found torch.int64"),
    (lambda: J.adaptive_avg_pool2d((2, 6, 6), (1, 2, 3)), ValueError, "output_size: found"),
    (lambda: J.dropout(X), TypeError, "mask: found torch.float32"),
    (lambda: J.dropout(X > 0, 1.5), ValueError, "p: found 1.5"),
    (lambda: J.batch_norm((3, 4), torch.ones(2)), ValueError, "running_var: found shape"),
    (lambda: J.batch_norm((2, 4), torch.ones(2), torch.ones(3)), ValueError, "weight: found shape"),
    (lambda: J.Pattern.of(X), TypeError, "matrix: found torch.strided"),
    (lambda: J.Pattern.of(J.relu(X).to_sparse_coo()), TypeError, "matrix: found"),
    (lambda: J.batch_norm((2,), torch.ones(2), torch.ones(2).to("meta")), ValueError, "on meta"),
    (lambda: J.dropout((X > 0).to("meta")), TypeError, "mask: found torch.bool on meta"),
    (lambda: J.Pattern.diagonal(3).csr(torch.ones(4)), ValueError, "values: found shape"),
    (
        lambda: J.conv2d_pattern(torch.ones(2000, 900, 3, 3) > 0, (64, 64), padding=1),
        RuntimeError,
        "2\\^31",
    ),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", REFUSED)
def test_what_does_not_fit_is_refused_with_its_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_each_device_gets_one_copy_that_is_let_go_with_the_original():
    """On "meta", which every machine has."""
    jacobian = J.max_pool2d_pattern((2, 6, 6), 2)
    plan = J.ProductPlan.of(jacobian.pattern, J.Pattern.diagonal(18))
    assert plan.on("cpu") is plan and plan.pattern.on(torch.device("cpu")) is plan.pattern
    there = plan.on("meta")
    assert there.on("meta") is there is plan.on("meta") is not plan
    assert there.a is plan.a.on("meta") and there.a.crow.is_meta and there.positions.is_meta
    assert (there.products, there.longest, there.a.nnz) == (plan.products, plan.longest, 72)
    axes = jacobian.on("meta")
    assert axes._y.first.is_meta and axes.pattern is jacobian.pattern.on("meta")
    assert there.on("cpu") is plan and there.a.on("cpu") is plan.a
    assert pickle.loads(pickle.dumps(there)).on("meta").a.crow.is_meta
    copied = pickle.loads(pickle.dumps(plan))
    assert "_copies" not in copied.__dict__ and torch.equal(copied.program, plan.program)
    gone = weakref.ref(there)
    del plan, there
    assert gone() is None  # at once: nothing refers to itself


def test_patterns_are_built_on_the_cpu_whatever_the_default_device():
    patterns.clear()
    with torch.device("meta"):
        made = [
            J.Pattern.diagonal(3),
            J.conv2d_pattern(W != 0, (5, 5)).pattern,
            J.max_pool2d_pattern((2, 6, 6), 3, 1).pattern,
            J.avg_pool2d_pattern((2, 6, 6), 2).pattern,
            J.adaptive_avg_pool2d_pattern((2, 6, 6), 4).pattern,
        ]
        plan = J.ProductPlan.of(made[2], J.Pattern.diagonal(32))
        jac_t = J.relu(torch.ones(3, device="cpu"))
    assert all(p.crow.is_cpu and p.col.is_cpu for p in (*made, plan.pattern))
    assert jac_t.device.type == "cpu"


def test_a_gpu_without_kernels_is_named(monkeypatch):
    monkeypatch.setattr(devices, "HAS_CUDA_KERNELS", False)
    with FakeTensorMode():
        x = torch.ones(2, 6, 6, device="cuda")
        with pytest.raises(RuntimeError, match="x: found on cuda:0; .* without its CUDA kernels"):
            J.relu(x)
        model = nn.Sequential(nn.Conv2d(2, 3, 3, device="cuda"), nn.ReLU())
        (chain,) = bl.attach(model, "blelloch")
        assert model(x[None]).shape == (1, 3, 4, 4)
    assert "without its CUDA kernels" in chain.reason and chain.handed_over == 1


def test_is_public():
    assert bl.jacobians is J and all(hasattr(J, name) for name in J.__all__)


def test_operators_pass_opcheck_and_refuse_to_be_differentiated():
    x = randn(2, 6, 6)
    pool, conv = J.max_pool2d_pattern((2, 6, 6), 3, 2), J.conv2d_pattern(W != 0, (6, 6))
    y, x_axis = pool._y, pool._x
    axes = (y.first, y.out, x_axis.first, x_axis.out, y.output, x_axis.output)
    v, weight = randn(conv.pattern.nnz), W.double()
    calls = [
        ("weight_values", (weight, conv.source, conv.first, conv.pattern.crow, conv.pattern.nnz)),
        ("elementwise_values", (x, "silu", 0.0)),
        ("max_pool_values", (x, *axes, *pool._geometry)),
        ("apply_csr", (conv.pattern.crow, conv.pattern.col, v, randn(conv.pattern.shape[1], 3))),
    ]
    plan = J.ProductPlan.of(conv.pattern, J.Pattern.diagonal(conv.pattern.shape[1]))
    of_a, of_b = (plan.a.crow, plan.a.col), (plan.b.crow, plan.b.col)
    fixed = (plan.pattern.crow, plan.program, plan.positions, plan.pattern.nnz, plan.longest, True)
    for a, b, beside in (
        (v, randn(plan.b.nnz), False),
        (randn(3, plan.a.nnz), randn(plan.b.nnz), False),
        (randn(plan.a.nnz, 3).t(), randn(plan.b.nnz, 3).t(), True),
        (v, randn(1, plan.b.nnz), True),
    ):
        calls.append(("multiply_csr", (*of_a, a, *of_b, b, *fixed, beside)))
    for name, arguments in calls:
        operator = getattr(torch.ops.bppsa, name)
        checks = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(operator.default, arguments, test_utils=checks)
        floats = [t.requires_grad_() if torch.is_tensor(t) and t.is_floating_point() else t
                  for t in arguments]  # fmt: skip
        with pytest.raises(NotImplementedError, match=f"{name} is not differentiable"):
            operator(*floats).sum().backward()


def test_recent_patterns_are_kept_within_a_budget():
    kept = PatternCache(100)
    builds = []

    def build(name, size):
        return lambda: builds.append(name) or SimpleNamespace(name=name, bytes=size)

    for name, size in (
        ("a", 40),
        ("b", 40),
        ("a", 40),
        ("c", 40),
        ("b", 40),
        ("d", 101),
        ("d", 101),
    ):
        assert kept.get(name, build(name, size)).name == name
    assert builds == ["a", "b", "c", "b", "d", "d"]  # c takes b's place, as a was used since
    kept.clear()
    kept.get("b", build("b", 40))
    assert builds[-1] == "b" and len(builds) == 7


def test_a_pattern_is_shared_by_calls_of_one_geometry_only():
    weight = randn(4, 2, 3, 3)
    first, again = (J.conv2d(weight * s, (6, 6), padding=1) for s in (1, 2))
    assert first.col_indices().data_ptr() == again.col_indices().data_ptr()
    assert torch.equal(again.to_dense(), 2 * first.to_dense())
    other = J.conv2d(weight, (6, 6), padding=0)
    assert other.shape != first.shape
    weight[0] = 0
    assert J.conv2d(weight, (6, 6), padding=1).values().numel() < first.values().numel()
