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
