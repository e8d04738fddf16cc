"""Wrong calls of sparse_conv2d and sparse_linear name argument, found and wanted."""

import pytest
import torch
from support.sparse_layers import mask_of, random

from bppsa_lightning.ops import (
    SparsePattern,
    sparse_conv2d,
    sparse_linear,
    surviving,
)

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
