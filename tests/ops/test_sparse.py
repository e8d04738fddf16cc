"""sparse_conv2d and sparse_linear: values, gradients, layouts, torch.compile, refusals.

The judge is the dense layer of PyTorch in float64, its weight multiplied by the mask.
"""

import pytest
import torch
from support.cases import relative_error
from support.sparse_layers import (
    CONVOLUTIONS,
    DENSITIES,
    DTYPES,
    FOLLOWERS,
    LAYOUTS,
    dense_conv2d,
    each_convolution,
    each_dtype,
    each_follower,
    followed,
    gradients,
    leaves,
    mask_of,
    pools,
    random,
    settings,
)
from torch.nn import functional as F

from bppsa_lightning.ops import (
    SparsePattern,
    run_sparse_layer,
    sparse_conv2d,
    sparse_linear,
)


@each_dtype
@each_convolution
def test_results_and_gradients_are_those_of_the_dense_layer(case, dtype):
    x_shape, shape, geometry = settings(case)
    tensors = random(*x_shape), random(*shape), random(shape[0])
    for density in DENSITIES:
        mask = mask_of(shape, density)
        pattern = SparsePattern.of(mask, *geometry)
        x, weight, bias = leaves(*tensors)
        output = dense_conv2d(x, weight, bias, mask, *geometry)
        grad = random(*output.shape, seed=1)
        wanted = gradients(output, grad, (x, weight, bias))
        for name, layout in LAYOUTS.items():
            x, weight, bias = leaves(*tensors, dtype=dtype, layout=layout)
            assert x.stride() == layout(random(*x_shape)).stride()
            output = sparse_conv2d(x, weight, pattern, bias)
            B, _, H, W = output.shape
            assert output.stride() == (1, H * W * B, W * B, B)
            found = gradients(output, layout(grad).to(dtype), (x, weight, bias))
            for what, have, want in zip(("output", "x", "weight", "bias"), found, wanted):
                assert relative_error(have, want) < DTYPES[dtype], (what, density, name)
            assert not found[2][~mask].any()


@each_follower
@each_dtype
@each_convolution
def test_followed_by_relu_and_pooling(case, dtype, relu, pool):
    if pool and not pools(case):
        pytest.skip("no window fits")
    x_shape, shape, geometry = settings(case)
    tensors = random(*x_shape), random(*shape), random(shape[0])
    for density in (0.03, 0.3):
        mask = mask_of(shape, density)
        pattern = SparsePattern.of(mask, *geometry)
        x, weight, bias = leaves(*tensors)
        output = followed(dense_conv2d(x, weight, bias, mask, *geometry), relu, pool)
        grad = random(*output.shape, seed=1)
        wanted = gradients(output, grad, (x, weight, bias))
        for layout in (LAYOUTS["samples innermost"], LAYOUTS["spread"]):
            x, weight, bias = leaves(*tensors, dtype=dtype, layout=layout)
            output = run_sparse_layer(x, weight, pattern, bias, relu, pool)
            # Neither adds rounding.
            assert torch.equal(
                output, followed(run_sparse_layer(x, weight, pattern, bias), relu, pool)
            )
            found = gradients(output, layout(grad).to(dtype), (x, weight, bias))
            for what, have, want in zip(("output", "x", "weight", "bias"), found, wanted):
                assert relative_error(have, want) < DTYPES[dtype], (what, density)
            assert not found[2][~mask].any()


@each_follower
@each_dtype
@pytest.mark.parametrize("B", [1, 8, 19, 32])
def test_ties_and_numbers_that_are_none_go_where_pytorch_sends_them(B, dtype, relu, pool):
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([-1.0, 0.0, 1.0, 2.0, float("nan"), float("inf"), -float("inf")])
    x = values[torch.randint(len(values), (B, 3, 6, 9), generator=generator)].to(dtype)
    pattern = SparsePattern.of(torch.eye(3))  # the identity
    stock, ours = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted = followed(stock, relu, pool)
    found = run_sparse_layer(ours, torch.ones(3, dtype=dtype), pattern, None, relu, pool)
    assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))
    grad = random(*wanted.shape).to(dtype)
    for output in (wanted, found):
        output.backward(grad)
    assert torch.equal(ours.grad, stock.grad)


@each_dtype
def test_linear(dtype):
    mask = mask_of((7, 33), 0.2)
    pattern = SparsePattern.of(mask)
    for batch in ((), (1,), (32,), (5, 9), (2, 3, 4)):
        tensors = random(*batch, 33), random(7, 33), random(7)
        x, weight, bias = leaves(*tensors)
        output = F.linear(x, weight * mask, bias)
        grad = random(*output.shape, seed=1)
        wanted = gradients(output, grad, (x, weight, bias))
        x, weight, bias = leaves(*tensors, dtype=dtype)
        found = gradients(
            sparse_linear(x, weight, pattern, bias), grad.to(dtype), (x, weight, bias)
        )
        for have, want in zip(found, wanted):
            assert have.shape == want.shape and relative_error(have, want) < DTYPES[dtype]


@pytest.mark.parametrize("batch", [0, 1])
def test_empty_batches_and_layers(batch):
    mask = mask_of((4, 3, 3, 3), 0.5)
    pattern = SparsePattern.of(mask, padding=1)
    x, weight, bias = leaves(random(batch, 3, 5, 5), random(4, 3, 3, 3), random(4))
    output = sparse_conv2d(x, weight, pattern, bias)
    assert output.shape == (batch, 4, 5, 5)
    for gradient, leaf in zip(
        torch.autograd.grad(output.sum(), (x, weight, bias)), (x, weight, bias)
    ):
        assert gradient.shape == leaf.shape and bool(gradient.any()) == bool(batch)
    nothing_out = SparsePattern.of(mask[:0])
    assert sparse_conv2d(x, weight[:0], nothing_out).shape == (batch, 0, 3, 3)


def test_only_wanted_gradients_are_computed(monkeypatch):
    calls = []
    from bppsa_lightning.ops import _sparse_autograd as sparse

    run = sparse._run_backward
    monkeypatch.setattr(sparse, "_run_backward", lambda *a: calls.append(a[-1]) or run(*a))
    mask = mask_of((4, 3, 3, 3), 0.5)
    pattern = SparsePattern.of(mask)
    tensors = random(8, 3, 5, 5), random(4, 3, 3, 3), random(4)
    full = leaves(*tensors)
    output = sparse_conv2d(full[0], full[1], pattern, full[2])
    wanted = torch.autograd.grad(output.square().sum(), full)
    for wants in range(1, 8):
        some = [t.requires_grad_(bool(wants >> i & 1)) for i, t in enumerate(leaves(*tensors))]
        sparse_conv2d(some[0], some[1], pattern, some[2]).square().sum().backward()
        for i, leaf in enumerate(some):
            assert (leaf.grad is not None) == bool(wants >> i & 1)
            assert leaf.grad is None or torch.equal(leaf.grad, wanted[i])
    assert calls == [7, *range(1, 8)]


def test_surviving_values_alone_are_a_weight():
    mask = mask_of((4, 3, 3, 3), 0.3)
    pattern = SparsePattern.of(mask, padding=1)
    x, weight = leaves(random(16, 3, 5, 5), random(4, 3, 3, 3))
    values = weight.detach()[mask].requires_grad_()
    assert values.shape == (pattern.nnz,) and torch.equal(pattern.dense(values), weight * mask)
    dense, compact = sparse_conv2d(x, weight, pattern), sparse_conv2d(x, values, pattern)
    assert torch.equal(dense, compact)
    (wanted,) = torch.autograd.grad(dense.sum(), weight)
    (found,) = torch.autograd.grad(compact.sum(), values)
    assert torch.equal(found, wanted[mask])


def test_second_derivatives():
    mask = mask_of((4, 2, 3, 2), 0.4)
    pattern = SparsePattern.of(mask, (2, 1), 1, 1, 2)
    x, weight, bias = leaves(random(2, 4, 5, 4), random(4, 2, 3, 2), random(4))
    run = lambda x, weight, bias: sparse_conv2d(x, weight, pattern, bias)  # noqa: E731
    assert torch.autograd.gradgradcheck(run, (x, weight, bias))
    assert torch.autograd.gradcheck(run, (x, weight, bias))


@each_follower
def test_second_derivatives_through_what_follows(relu, pool):
    mask = mask_of((4, 2, 3, 2), 0.4)
    pattern = SparsePattern.of(mask, (2, 1), 1, 1, 2)
    x, weight, bias = leaves(random(2, 4, 5, 4), random(4, 2, 3, 2), random(4))
    run = lambda *inputs: run_sparse_layer(*inputs[:2], pattern, inputs[2], relu, pool)  # noqa: E731
    assert torch.autograd.gradcheck(run, (x, weight, bias))
    assert torch.autograd.gradgradcheck(run, (x, weight, bias))


@pytest.mark.slow
@each_convolution
def test_opcheck(case):
    x_shape, shape, geometry = settings(case)
    pattern = SparsePattern.of(mask_of(shape, 0.3), *geometry)
    x, values, bias = leaves(random(*x_shape), random(pattern.nnz), random(shape[0]))
    arguments = (x, values, bias, *pattern.arguments())
    # Tracing knows sizes alone: one convolution that has all settings is enough.
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    checks += ["test_aot_dispatch_dynamic"] * (case is CONVOLUTIONS["dilated, strided"])
    for relu, pool in ((False, False), *FOLLOWERS.values()):
        if not pool or pools(case):
            operator = torch.ops.bppsa.sparse_conv2d.default
            torch.library.opcheck(operator, (*arguments, relu, pool), test_utils=checks)


def test_opcheck_of_what_takes_and_puts_weights():
    weight, grad, index = random(24), random(3), torch.tensor([2, 7, 23])
    weight, grad = leaves(weight, grad)
    torch.library.opcheck(torch.ops.bppsa.take_surviving.default, (weight, index))
    torch.library.opcheck(torch.ops.bppsa.put_surviving.default, (grad, index, weight.numel()))


def test_compiled():
    mask = mask_of((4, 3, 3, 3), 0.3)
    pattern = SparsePattern.of(mask, padding=1)
    step = lambda x, w, b: sparse_conv2d(x.relu(), w, pattern, b).square().sum()  # noqa: E731
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for batch in (16, 5):
        inputs = leaves(random(batch, 3, 5, 5), random(4, 3, 3, 3), random(4))
        wanted = torch.autograd.grad(step(*inputs), inputs)
        for have, want in zip(torch.autograd.grad(compiled(*inputs), inputs), wanted):
            assert relative_error(have, want) < 1e-14


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_same_bits_again_and_close_ones_on_other_threads(threads):
    before = torch.get_num_threads()
    pattern = SparsePattern.of(mask_of((50, 40, 3, 3), 0.05), padding=1)
    inputs = leaves(random(32, 40, 8, 8), random(50, 40, 3, 3), random(50), dtype=torch.float32)

    def run():
        output = sparse_conv2d(inputs[0], inputs[1], pattern, inputs[2])
        return output, *torch.autograd.grad(output.square().sum(), inputs)

    wanted = run()
    try:
        torch.set_num_threads(threads)
        first, second = run(), run()
    finally:
        torch.set_num_threads(before)
    for a, b, want in zip(first, second, wanted):
        assert torch.equal(a, b) and relative_error(a, want.double()) < 1e-5


def test_float32_is_as_exact_as_pytorch():
    mask = mask_of((64, 64, 3, 3), 0.05)
    pattern = SparsePattern.of(mask, padding=1)
    tensors = random(32, 64, 16, 16), random(64, 64, 3, 3), random(64)
    grad = random(32, 64, 16, 16, seed=1)
    run = {
        "ours": lambda x, w, b: sparse_conv2d(x, w, pattern, b),
        "stock": lambda x, w, b: F.conv2d(x, w * mask, b, padding=1),
    }
    exact = leaves(*tensors)
    wanted = gradients(run["stock"](*exact), grad, exact)
    errors = {}
    for name, layer in run.items():
        inputs = leaves(*tensors, dtype=torch.float32)
        found = gradients(layer(*inputs), grad.float(), inputs)
        errors[name] = [relative_error(a, b) for a, b in zip(found, wanted)]
    for ours, stock in zip(errors["ours"], errors["stock"]):
        assert ours <= 2 * stock + 1e-7, errors
