"""sparse_conv2d and sparse_linear: values, gradients, layouts, torch.compile, refusals.

The judge is the dense layer of PyTorch in float64, its weight multiplied by the mask.
"""

import pytest
import torch
from support.cases import relative_error
from support.helpers import lower_levels, run_at_level
from torch.nn import functional as F

from bppsa_lightning.ops import (
    SparsePattern,
    run_sparse_layer,
    sparse_conv2d,
    sparse_linear,
    surviving,
)

# samples, channels in, out, groups, image, kernel, stride, padding, dilation: a vector's multiple,
# less than a vector, one sample, samples that no vector divides, an image of one pixel, phases
# that no tap reaches, padding beyond the kernel.
CONVOLUTIONS = {
    "vgg": (32, 5, 7, 1, (8, 8), (3, 3), 1, 1, 1),
    "one pixel": (32, 9, 6, 1, (1, 1), (3, 3), 1, 1, 1),
    "one sample": (1, 4, 5, 1, (9, 11), (3, 3), 1, 1, 1),
    "odd": (19, 3, 4, 1, (5, 6), (2, 3), 1, (0, 1), 1),
    "few": (3, 2, 3, 1, (2, 2), (1, 1), 1, 0, 1),
    "strided": (8, 4, 6, 1, (9, 8), (3, 2), (2, 3), (1, 0), 1),
    "phases": (16, 3, 4, 1, (7, 7), (1, 2), 3, 0, 1),
    "dilated": (4, 3, 4, 1, (11, 12), (3, 3), 1, (2, 3), (2, 3)),
    "dilated, strided": (7, 3, 4, 1, (12, 12), (3, 3), (2, 3), 2, (3, 2)),
    "groups": (20, 6, 9, 3, (6, 5), (3, 3), 1, 1, 1),
    "depthwise": (16, 8, 8, 8, (7, 6), (3, 3), 2, 1, 1),
    "wide padding": (5, 2, 3, 1, (4, 3), (2, 2), (1, 2), 4, 1),
    "uneven padding": (17, 3, 4, 1, (6, 7), (2, 4), 1, (0, 1, 1, 2), 1),
    "many samples": (150, 3, 4, 1, (3, 3), (3, 3), 1, 1, 1),
}
DENSITIES = (0.0, 0.03, 0.3, 1.0)
DTYPES = {torch.float64: 1e-13, torch.float32: 4e-6}
LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "samples innermost": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "spread": lambda x: torch.stack([x, x], -1)[..., 1],
}
each_convolution = pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# ReLU, pooling: what may follow in the same pass.
FOLLOWERS = {"relu": (True, False), "pool": (False, True), "relu, pool": (True, True)}
each_follower = pytest.mark.parametrize("relu, pool", FOLLOWERS.values(), ids=FOLLOWERS)


def settings(case):
    B, C, O, groups, size, kernel, stride, padding, dilation = case
    return (B, C, *size), (O, C // groups, *kernel), (stride, padding, dilation, groups)


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def mask_of(shape, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) < density


def dense_conv2d(x, weight, bias, mask, stride, padding, dilation, groups):
    if isinstance(padding, tuple) and len(padding) == 4:
        top, bottom, left, right = padding
        x, padding = F.pad(x, (left, right, top, bottom)), 0
    return F.conv2d(x, weight * mask, bias, stride, padding, dilation, groups)


def followed(output, relu, pool):
    output = output.relu() if relu else output
    return F.max_pool2d(output, 2) if pool else output


def pools(case):
    """Whether a window fits into the output."""
    x_shape, shape, geometry = settings(case)
    return min(SparsePattern.of(mask_of(shape, 1), *geometry).output_size(*x_shape[2:])) >= 2


def gradients(output, grad, inputs):
    return (output.detach(), *torch.autograd.grad(output, inputs, grad))


def leaves(*tensors, dtype=torch.float64, layout=LAYOUTS["contiguous"]):
    x, *others = (t.to(dtype) for t in tensors)
    return [t.detach().requires_grad_() for t in (layout(x), *others)]


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
    from bppsa_lightning.ops import sparse

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


@each_convolution
def test_opcheck(case):
    x_shape, shape, geometry = settings(case)
    pattern = SparsePattern.of(mask_of(shape, 0.3), *geometry)
    x, values, bias = leaves(random(*x_shape), random(pattern.nnz), random(shape[0]))
    arguments = (x, values, bias, *pattern.arguments(), pattern.groups)
    for relu, pool in ((False, False), *FOLLOWERS.values()):
        if not pool or pools(case):
            operator = torch.ops.bppsa.sparse_conv2d.default
            torch.library.opcheck(operator, (*arguments, relu, pool))
    weight, grad = leaves(random(mask_of(shape, 1).numel()), random(pattern.nnz))
    torch.library.opcheck(torch.ops.bppsa.take_surviving.default, (weight, pattern.index))
    put = (grad, pattern.index, weight.numel())
    torch.library.opcheck(torch.ops.bppsa.put_surviving.default, put)


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


_LEVEL_SCRIPT = """
import ops.test_sparse as tests
for name in ("vgg", "odd", "strided", "dilated, strided", "one sample"):
    for dtype in tests.DTYPES:
        case = tests.CONVOLUTIONS[name]
        tests.test_results_and_gradients_are_those_of_the_dense_layer(case, dtype)
        if name in ("odd", "strided"):
            tests.test_followed_by_relu_and_pooling(case, dtype, True, False)
            tests.test_followed_by_relu_and_pooling(case, dtype, True, True)
            tests.test_ties_and_numbers_that_are_none_go_where_pytorch_sends_them(
                19, dtype, True, True
            )
"""


@lower_levels
def test_lower_instruction_sets_give_the_same_results(level):
    run_at_level(level, _LEVEL_SCRIPT)


MASK = mask_of((4, 3, 3, 3), 0.3)
PATTERN = SparsePattern.of(MASK)
X, WEIGHT, BIAS = random(2, 3, 5, 5), random(4, 3, 3, 3), random(4)
BAD_LAYERS = {
    "no tensor": ((3, WEIGHT, PATTERN), TypeError, "x: found int, wanted a torch.Tensor"),
    "no pattern": ((X, WEIGHT, MASK), TypeError, "pattern: found Tensor, wanted a SparsePattern"),
    "integers": ((X.long(), WEIGHT, PATTERN), TypeError, "x: found dtype torch.int64"),
    "other dtype": ((X, WEIGHT.float(), PATTERN), TypeError, "weight: found dtype torch.float32"),
    "other device": ((X, WEIGHT.to("meta"), PATTERN), ValueError, "weight: found on meta"),
    "channels": ((X[:, :2], WEIGHT, PATTERN), ValueError, r"x: found shape \(2, 2, 5, 5\), wanted"),
    "too small": ((X[..., :2], WEIGHT, PATTERN), ValueError, "no smaller than the kernel"),
    "weight": ((X, WEIGHT[:2], PATTERN), ValueError, r"weight: found shape \(2, 3, 3, 3\), wanted"),
    "bias": (
        (X, WEIGHT, PATTERN, BIAS[:3]),
        ValueError,
        r"bias: found shape \(3,\), wanted \(4,\)",
    ),
}
BAD_PATTERNS = {
    "no tensor": (([1],), TypeError, "mask: found list, wanted a torch.Tensor"),
    "dimensions": ((MASK[0],), ValueError, r"mask: found shape \(3, 3, 3\), wanted"),
    "groups": ((MASK, 1, 0, 1, 3), ValueError, "groups: found 3, wanted a divisor of the 4"),
    "stride": ((MASK, 0), ValueError, "stride: found 0, wanted 1 or 2 of at least 1"),
    "stride type": ((MASK, 1.5), TypeError, "stride: found 1.5, wanted integers"),
    "padding": (
        (MASK, 1, (1, 2, 3)),
        ValueError,
        r"padding: found \(1, 2, 3\), wanted 1 or 2 or 4",
    ),
    "dilation": ((MASK, 1, 0, (1, 0)), ValueError, r"dilation: found \(1, 0\)"),
}


@pytest.mark.parametrize("arguments, error, message", BAD_LAYERS.values(), ids=BAD_LAYERS)
def test_bad_layers_name_argument_found_and_wanted(arguments, error, message):
    with pytest.raises(error, match=message):
        sparse_conv2d(*arguments)


LINEAR = SparsePattern.of(torch.eye(4))
BAD_CALLS = {
    "linear pattern": (
        lambda: sparse_linear(torch.zeros(2, 3), torch.zeros(4, 3), PATTERN),
        ValueError,
        r"pattern: found that of a convolution, with a weight of \(4, 3, 3, 3\), .* \(O, C\) mask",
    ),
    "linear pattern type": (
        lambda: sparse_linear(torch.zeros(2, 3), torch.zeros(4, 3), torch.eye(4)),
        TypeError,
        "pattern: found Tensor, wanted a SparsePattern",
    ),
    "linear x": (
        lambda: sparse_linear(torch.zeros(2, 5), torch.zeros(4, 4), LINEAR),
        ValueError,
        r"x: found shape \(2, 5\), wanted \(\.\.\., 4\)",
    ),
    "linear x type": (
        lambda: sparse_linear([1.0], torch.zeros(4, 4), LINEAR),
        TypeError,
        "x: found list, wanted a torch.Tensor",
    ),
    "linear weight": (
        lambda: sparse_linear(torch.zeros(2, 4), torch.zeros(4, 5), LINEAR),
        ValueError,
        r"weight: found shape \(4, 5\), wanted \(4, 4\) or \(4,\)",
    ),
    "surviving shape": (
        lambda: surviving(torch.zeros(9, 9), LINEAR),
        ValueError,
        r"weight: found shape \(9, 9\), wanted \(4, 4, 1, 1\) or \(4, 4\)",
    ),
    "surviving dtype": (
        lambda: surviving(torch.zeros(4, 4).half(), LINEAR),
        TypeError,
        "weight: found dtype torch.float16, wanted float32 or float64",
    ),
    "dense shape": (
        lambda: LINEAR.dense(torch.zeros(9)),
        ValueError,
        r"values: found shape \(9,\), wanted \(4,\)",
    ),
    "dense type": (lambda: LINEAR.dense([1.0]), TypeError, "values: found list, wanted a torch"),
}


@pytest.mark.parametrize("call, error, message", BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_calls_name_argument_found_and_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("arguments, error, message", BAD_PATTERNS.values(), ids=BAD_PATTERNS)
def test_bad_patterns_name_argument_found_and_wanted(arguments, error, message):
    with pytest.raises(error, match=message):
        SparsePattern.of(*arguments)
