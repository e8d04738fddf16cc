"""bl.jacobians: patterns, their cache and their copies on devices; errors."""

import pickle
import weakref
from types import SimpleNamespace

import pytest
import torch
from support.jacobian_checks import randn
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import bppsa_lightning as bl
from bppsa_lightning import _library
from bppsa_lightning import jacobians as J
from bppsa_lightning.jacobians.cache import PatternCache, patterns


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
    monkeypatch.setattr(_library, "HAS_CUDA_KERNELS", False)
    with FakeTensorMode():
        x = torch.ones(2, 6, 6, device="cuda")
        with pytest.raises(RuntimeError, match="x: found on cuda:0; .* without its CUDA kernels"):
            J.relu(x)
        model = nn.Sequential(nn.Conv2d(2, 3, 3, device="cuda"), nn.ReLU())
        (chain,) = bl.attach(model, "blelloch")
        assert model(x[None]).shape == (1, 3, 4, 4)
    assert "without its CUDA kernels" in chain.reason and chain.fallback_calls == 1


def test_is_public():
    assert "jacobians" in bl.__all__ and all(hasattr(J, name) for name in J.__all__)
    assert {"conv2d", "linear", "relu", "max_pool2d"} <= set(J.__all__)


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
