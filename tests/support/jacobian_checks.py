"""A transposed Jacobian in CSR is valid, and torch.func.jacrev's."""

import torch
from hypothesis import settings
from hypothesis import strategies as st

from bppsa_lightning import jacobians as J
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
