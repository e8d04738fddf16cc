"""Jacobians of poolings, over random settings, against torch.func.jacrev."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cases import DEVICES
from support.jacobian_checks import both, check, dtypes, pairs, quick, randn, seeds

from bppsa_lightning import jacobians as J


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
