"""Random sparse matrices for several test files."""

import torch

from bppsa_lightning import jacobians as J


def random_pattern(rows, columns, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return J.Pattern.of(
        (torch.rand(rows, columns, generator=generator) < density).float().to_sparse_csr()
    )


def values_of(pattern, *batch, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*batch, pattern.nnz, dtype=torch.float64, generator=generator).to(dtype)


def beside(values):
    """The same (B, nnz) with samples side by side in memory."""
    return values.t().contiguous().t()


def conv_pattern(inputs, outputs, size, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(outputs, inputs, 3, 3, generator=generator) < density
    return J.conv2d_pattern(keep, (size, size), padding=1).pattern


# The patterns of A and B; samples (None: no batch), and which of A and B all samples share.
PRODUCTS = {
    "one sample": lambda: (random_pattern(30, 40, 0.3), random_pattern(40, 50, 0.3, 1)),
    "empty rows": lambda: (random_pattern(40, 30, 0.03), random_pattern(30, 20, 0.05, 1)),
    "nothing": lambda: (random_pattern(4, 5, 0.0), random_pattern(5, 3, 0.4, 1)),
    "no rows": lambda: (random_pattern(0, 5, 0.5), random_pattern(5, 3, 0.4, 1)),
    "dense": lambda: (random_pattern(9, 33, 1.0), random_pattern(33, 65, 1.0, 1)),
    "long rows": lambda: (random_pattern(3, 40, 0.9), random_pattern(40, 1500, 0.4, 1)),
    "32-bit places": lambda: (random_pattern(2, 3, 1.0), random_pattern(3, 70_000, 0.99, 1)),
    "in order": lambda: (J.Pattern.diagonal(128), conv_pattern(2, 3, 8, 0.6)),
    "scaled columns": lambda: (conv_pattern(3, 2, 8, 0.6), J.Pattern.diagonal(128)),
    "convolutions": lambda: (conv_pattern(3, 4, 6, 0.5), conv_pattern(4, 5, 6, 0.5, 1)),
    "pooled": lambda: (conv_pattern(2, 3, 8, 0.7), J.max_pool2d_pattern((3, 8, 8), 2).pattern),
}
BATCHES = [(None, ""), (0, ""), (1, ""), (3, ""), (5, "a"), (16, "b"), (19, ""), (40, "")]


def product_case(name, B, shared, dtype, laid_beside=False):
    """Plan and values of A and B of one case."""
    a, b = PRODUCTS[name]()
    values = [
        values_of(p, *(() if B is None or who in shared else (B,)), dtype=dtype, seed=i)
        for i, (who, p) in enumerate((("a", a), ("b", b)))
    ]
    if laid_beside:
        values = [beside(v) if v.dim() == 2 else v for v in values]
    return J.ProductPlan.of(a, b), *values


# Windows of a max-pooling: (C, H, W), then the arguments.
POOLS = [
    ((2, 6, 8), 2),
    ((3, 7, 5), 2),
    ((2, 7, 7), 3, 1, 1),
    ((1, 9, 10), 3, 2, 1, 1, True),
    ((2, 8, 9), (2, 3), (3, 2), (1, 0), (2, 1)),
    ((1, 1, 1), 1),
]

ELEMENTWISE = ["relu", "leaky_relu", "tanh", "sigmoid", "silu"]


def edges(dtype):
    """Numbers that elementwise functions are tried on: zeros, tiny, huge, not finite, and plain."""
    hard = [0.0, -0.0, 1e-30, -1e-30, 50.0, -50.0, 800.0, -800.0, float("inf"), float("nan")]
    plain = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
    return torch.cat([torch.tensor(hard, dtype=torch.float64), plain]).to(dtype)
