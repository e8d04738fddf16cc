"""Products by fixed plans: against dense products in float64; plans; budgets; errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import DEVICES, relative_error
from support.sparse_cases import BATCHES, PRODUCTS, beside, product_case, random_pattern, values_of

from bppsa_lightning import jacobians as J
from bppsa_lightning.jacobians import Pattern, apply_csr

TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-6}


def check(plan, a, b, tolerance):
    """`plan` multiplies values a and b of its patterns as dense matrices do, in their layout."""
    wanted = plan.a.csr(a.double()).to_dense() @ plan.b.csr(b.double()).to_dense()
    found = plan.multiply(a, b)
    assert found.dtype == a.dtype
    assert relative_error(plan.pattern.csr(found).to_dense(), wanted) <= tolerance
    torch._validate_sparse_csr_tensor_args(
        plan.pattern.crow, plan.pattern.col, found[(0,) * (found.dim() - 1)],
        plan.pattern.shape,
    )  # fmt: skip
    return found


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(1, 300)),
    st.sampled_from([0.0, 0.05, 0.3, 1.0]), st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    st.sampled_from([None, 1, 2, 5, 19]), st.sampled_from([None, 1]), st.sampled_from([None, 1]),
    st.sampled_from(list(TOLERANCES)), st.integers(0, 2**31),
)  # fmt: skip
def test_products_of_random_patterns(size, density_a, density_b, B, share_a, share_b, dtype, seed):
    m, k, n = size
    a, b = random_pattern(m, k, density_a, seed), random_pattern(k, n, density_b, seed + 1)
    plan = J.ProductPlan.of(a, b)
    batch = () if B is None else (B,)
    a_values = values_of(a, *(() if share_a else batch), dtype=dtype)
    b_values = values_of(b, *(() if share_b else batch), dtype=dtype, seed=1)
    found = check(plan, a_values, b_values, TOLERANCES[dtype])
    if found.dim() == 2:
        other = [beside(v) if v.dim() == 2 else v for v in (a_values, b_values)]
        again = check(plan, *other, TOLERANCES[dtype])
        assert again.shape == found.shape
        if found.shape[0] > 1 and min(a.nnz, b.nnz, found.shape[1]) > 1:
            assert again.stride() == (1, found.shape[0]) and found.is_contiguous()
    where = (
        a.csr(values_of(a)).to_dense().ne(0).double()
        @ b.csr(values_of(b)).to_dense().ne(0).double()
    )
    assert plan.products == int(where.sum()) and plan.pattern.nnz == int((where > 0).sum())


def dense(pattern, values):
    """(rows, columns), or (B, rows, columns), in float64."""
    found = torch.zeros(*values.shape[:-1], *pattern.shape, dtype=torch.float64)
    rows = torch.arange(pattern.shape[0]).repeat_interleave(pattern.crow.diff())
    found[..., rows, pattern.col.long()] = values.cpu().double()
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_cases_of_products(name, batch, dtype, device):
    for laid_beside in (False, True):
        plan, a, b = product_case(name, *batch, dtype, laid_beside)
        found = plan.multiply(a.to(device), b.to(device))
        again = plan.multiply(a.to(device), b.to(device))
        assert found.dtype == dtype and found.device.type == device and torch.equal(found, again)
        wanted = dense(plan.a, a) @ dense(plan.b, b)
        assert relative_error(dense(plan.pattern, found), wanted) <= TOLERANCES[dtype]


def layers():
    """(name, pattern) of a small net's transposed Jacobians, in order."""
    generator = torch.Generator().manual_seed(0)
    keep = [torch.rand(o, i, 3, 3, generator=generator) < 0.3 for o, i in ((8, 4), (6, 8))]
    yield "conv", J.conv2d_pattern(keep[0], (8, 8), padding=1).pattern
    yield "relu", J.Pattern.diagonal(8 * 64)
    yield "conv", J.conv2d_pattern(keep[1], (8, 8), padding=1).pattern
    yield "pool", J.max_pool2d_pattern((6, 8, 8), 2).pattern
    yield "overlapping pool", J.max_pool2d_pattern((6, 4, 4), 3, 1, 1).pattern
    yield "linear", J.linear_pattern(torch.ones(10, 96, dtype=torch.bool)).pattern


@pytest.mark.parametrize("B", [None, 3, 16])
def test_a_chain_of_layers_by_plans_is_the_chain_of_dense_products(B):
    patterns = [pattern for _, pattern in layers()]
    batch = () if B is None else (B,)
    values = [values_of(p, *batch, seed=i) for i, p in enumerate(patterns)]
    product, found = patterns[0], values[0]
    whole = product.csr(found).to_dense()
    for pattern, v in zip(patterns[1:], values[1:]):
        plan = J.ProductPlan.of(product, pattern)
        found, product = plan.multiply(found, v), plan.pattern
        whole = whole @ pattern.csr(v).to_dense()
    assert relative_error(product.csr(found).to_dense(), whole) < 1e-13
    # And from the other end.
    product, found = patterns[-1], values[-1]
    for pattern, v in zip(patterns[-2::-1], values[-2::-1]):
        plan = J.ProductPlan.of(pattern, product)
        found, product = plan.multiply(v, found), plan.pattern
    assert relative_error(product.csr(found).to_dense(), whole) < 1e-13


def test_rows_share_what_they_have_in_common():
    keep = torch.ones(4, 4, 3, 3, dtype=torch.bool)
    conv = J.conv2d_pattern(keep, (20, 20), padding=1).pattern
    plan = J.ProductPlan.of(conv, conv)
    assert plan.positions.numel() < plan.products / 10
    check(plan, values_of(conv), values_of(conv, seed=1), 1e-13)


def test_rows_that_only_seem_to_have_it_in_common_are_found_out():
    """Two hashes that collide: the fill compares, and gives each row places of its own."""
    a = J.Pattern.of(torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]).to_sparse_csr())
    b = J.Pattern.of(torch.tensor([[0, 1, 1.0], [1, 0, 1.0], [1, 1, 0.0]]).to_sparse_csr())
    operands = (a.crow, a.col, b.crow, b.col, 3)
    row_size, products, owner, _ = torch.ops.bppsa.count_product(*operands)
    assert owner.tolist() == [0, 1] and row_size.tolist() == [3, 3] and products.tolist() == [4, 4]
    honest = torch.ops.bppsa.fill_product(*operands, row_size, products, owner)
    forged = torch.zeros_like(owner)
    found = torch.ops.bppsa.fill_product(*operands, row_size, products, forged)
    assert all(torch.equal(x, y) for x, y in zip(found, honest))


def test_diagonal_matrices_need_no_places():
    conv = J.conv2d_pattern(torch.ones(2, 3, 3, 3, dtype=torch.bool), (6, 6)).pattern
    for a, b in ((J.Pattern.diagonal(108), conv), (conv, J.Pattern.diagonal(32))):
        plan = J.ProductPlan.of(a, b)
        assert not plan.positions.numel() and plan.products == plan.pattern.nnz == conv.nnz
        check(plan, values_of(a), values_of(b), 1e-14)


def test_rows_of_more_than_16_bits():
    a, b = random_pattern(2, 3, 1.0), random_pattern(3, 70_000, 0.99)
    plan = J.ProductPlan.of(a, b)
    assert plan.positions.dtype == torch.int32 and plan.pattern.crow[1] > 2**16
    for batch in ((), (3,)):
        a_values, b_values = values_of(a, *batch), values_of(b, *batch, seed=1)
        check(plan, a_values, b_values, 1e-13)
    check(plan, beside(a_values), beside(b_values), 1e-13)


def test_rows_of_exactly_16_bits():
    plan = J.ProductPlan.of(random_pattern(2, 3, 1.0), random_pattern(3, 2**16, 1.0))
    assert plan.positions.dtype == torch.int16
    check(plan, values_of(plan.a), values_of(plan.b, seed=1), 1e-13)


def test_the_same_bits_for_every_number_of_threads_and_layout():
    a, b = random_pattern(300, 200, 0.2), random_pattern(200, 400, 0.2, seed=1)
    plan = J.ProductPlan.of(a, b)
    a_values, b_values = (values_of(p, 5, dtype=torch.float32) for p in (a, b))
    threads, found = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.append(plan.multiply(a_values, b_values))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_a_plan_beyond_its_budget_is_refused_with_its_size():
    a, b = random_pattern(300, 200, 0.2), random_pattern(200, 400, 0.2, seed=1)
    plan = J.ProductPlan.of(a, b, dtype=torch.float64)
    with pytest.raises(J.PlanTooLarge, match=r"budget: .*300 x 200.*MiB") as refusal:
        J.ProductPlan.of(a, b, budget=1000, dtype=torch.float64)
    values = plan.pattern.nnz * 8
    assert plan.bytes + values == pytest.approx(refusal.value.bytes, rel=0.05)
    J.ProductPlan.of(a, b, budget=refusal.value.bytes, dtype=torch.float64)


def test_a_product_of_too_much_work_is_refused_before_it_is_planned():
    a, b = random_pattern(30, 20, 0.5), random_pattern(20, 40, 0.5, seed=1)
    products = J.ProductPlan.of(a, b).products
    J.ProductPlan.of(a, b, max_products=products)
    with pytest.raises(
        J.PlanTooLarge, match=f"max_products: .* takes {products:,} mult"
    ) as refusal:
        J.ProductPlan.of(a, b, max_products=products - 1)
    assert refusal.value.bytes is None


def test_describes_itself():
    conv = J.conv2d_pattern(torch.ones(2, 3, 3, 3, dtype=torch.bool), (6, 6)).pattern
    plan = J.ProductPlan.of(conv, J.Pattern.diagonal(32))
    text = plan.describe()
    assert f"nnz {conv.nnz:,}" in text and f"{2 * conv.nnz:,} FLOPs" in text and "MiB" in text


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("B", [0, 1, 3, 16, 35])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
def test_cases_of_matrix_times_vectors(B, shared, dtype, device):
    a = random_pattern(30, 40, 0.3)
    values = values_of(a, dtype=dtype) if shared else beside(values_of(a, B, dtype=dtype))
    x = torch.randn(40, B, dtype=dtype, generator=torch.Generator().manual_seed(1))
    found = apply_csr(a, values.to(device), x.to(device))
    whole = dense(a, values)
    wanted = whole @ x.double() if shared else (whole @ x.double().T.unsqueeze(-1))[..., 0].T
    assert found.shape == wanted.shape and found.device.type == device
    assert relative_error(found, wanted) < TOLERANCES[dtype]


A, B_ = random_pattern(4, 5, 0.9), random_pattern(5, 6, 0.9)
PLAN = J.ProductPlan.of(A, B_)
VA, VB = values_of(A), values_of(B_)
REFUSED = [
    (lambda: J.ProductPlan.of(A, A), ValueError, "b: found 4 rows, wanted 5"),
    (lambda: PLAN.multiply([1.0], VB), TypeError, "a: found list"),
    (lambda: PLAN.multiply(VA, VB[1:]), ValueError, "b: found shape"),
    (lambda: PLAN.multiply(VA, VB.float()), TypeError, "b: found dtype torch.float32"),
    (lambda: PLAN.multiply(VA, VB.to("meta")), ValueError, "b: found on meta"),
    (lambda: J.ProductPlan.of(A, B_.on("meta")), ValueError, "b: found a pattern on meta"),
    (lambda: J.ProductPlan.of(A, VB), TypeError, "b: found Tensor, wanted a Pattern"),
    (lambda: apply_csr(A, VA, torch.ones(A.shape[1] - 1, 2)), ValueError, "g: found shape"),
    (lambda: PLAN.multiply(VA.half(), VB.half()), TypeError, "a: found dtype torch.float16"),
    (
        lambda: PLAN.multiply(VA.expand(2, -1), VB.expand(3, -1)),
        ValueError,
        "b: found a batch of 3, wanted a's 2",
    ),
]


def test_strides_of_dimensions_with_one_place_or_none_say_nothing():
    one = J.Pattern.diagonal(1)
    plan = J.ProductPlan.of(one, one)
    across, along = torch.randn(1, 4).t(), torch.randn(4, 1)
    assert across.stride() == (1, 4) and along.stride() == (1, 1)
    assert torch.equal(plan.multiply(across, along), across * along)
    single = torch.randn(1, 7)[:, :1]
    assert torch.equal(plan.multiply(single, single), single * single)
    diagonal = J.Pattern.diagonal(5)
    nothing = torch.randn(5, 8).t()[:0]
    assert J.ProductPlan.of(diagonal, diagonal).multiply(nothing, nothing).shape == (0, 5)
    empty = J.Pattern.of(torch.zeros(3, 4).to_sparse_csr())
    out = apply_csr(empty, torch.randn(4, 8)[:, :0], torch.randn(4, 4))
    assert torch.equal(out, torch.zeros(3, 4))


@pytest.mark.parametrize("call, error, message", REFUSED)
def test_what_does_not_fit_is_refused_with_its_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def by_hand(crow, col, shape=(2, 3), dtype=torch.int32):
    return Pattern(torch.tensor(crow, dtype=dtype), torch.tensor(col, dtype=dtype), shape)


@pytest.mark.parametrize(
    ("crow", "col", "dtype", "error", "message"),
    [
        ([0, 1, 2], [0, 3], torch.int32, ValueError, "no CSR of 2 x 3"),
        ([0, 1, 2], [0, -1], torch.int32, ValueError, "no CSR of 2 x 3"),
        ([0, 1, 2], [0, 10**9], torch.int32, ValueError, "no CSR of 2 x 3"),
        ([0, 2, 1], [0, 1], torch.int32, ValueError, "no CSR of 2 x 3"),
        ([0, 9, 2], [0, 1], torch.int32, ValueError, "no CSR of 2 x 3"),
        ([1, 1, 2], [0, 1], torch.int32, ValueError, "no CSR of 2 x 3"),
        ([0, 1, 3], [0, 1], torch.int32, ValueError, "no CSR of 2 x 3"),
        ([0, 2, 2], [1, 1], torch.int32, ValueError, "no CSR of 2 x 3"),
        ([0, 2], [0, 1], torch.int32, ValueError, r"crow: found shape \(2,\), wanted \(rows"),
        ([0, 1, 2], [[0, 1]], torch.int32, ValueError, "col: found .* wanted one dimension"),
        ([0, 1, 2], [0, 1], torch.int64, TypeError, "crow: found torch.int64, wanted a tensor"),
    ],
)
def test_indices_that_leave_the_matrix_are_refused(crow, col, dtype, error, message):
    """Where the pattern is made: kernels follow its indices, in compiled graphs too."""
    with pytest.raises(error, match=message):
        by_hand(crow, col, dtype=dtype)


def test_a_valid_pattern_by_hand():
    pattern = by_hand([0, 1, 3], [2, 0, 1])
    found = apply_csr(pattern, torch.tensor([1.0, 2.0, 3.0]), torch.eye(3))
    assert found.tolist() == [[0, 0, 1], [2, 3, 0]]
