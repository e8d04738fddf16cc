"""Jacobians of layers with weights, over random settings, against torch.func.jacrev."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from support.cases import DEVICES
from support.jacobian_checks import both, check, dtypes, pairs, quick, randn, seeds

from bppsa_lightning import jacobians as J


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
