"""Jacobians that are diagonal: elementwise functions, flatten, dropout, batch norm."""

import pytest
import torch
import torch.nn.functional as F
from support.cases import DEVICES
from support.jacobian_checks import check, randn

from bppsa_lightning import jacobians as J

ELEMENTWISE = [
    (J.relu, F.relu),
    (J.leaky_relu, F.leaky_relu),
    (lambda x: J.leaky_relu(x, 0.3), lambda x: F.leaky_relu(x, 0.3)),
    (J.tanh, torch.tanh),
    (J.sigmoid, torch.sigmoid),
    (J.silu, F.silu),
    (J.gelu, F.gelu),
    (lambda x: J.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ours, stock", ELEMENTWISE)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 7), (67,), (0,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_elementwise(ours, stock, shape, dtype, device):
    x = (randn(*shape, dtype=dtype) * 3).to(device)
    check(ours(x), stock, x, device)
    if len(shape) == 2:
        check(ours(x.T), stock, x.T, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ours, stock", ELEMENTWISE)
def test_elementwise_beyond_a_block_and_at_the_edges(ours, stock, device):
    edges = [0.0, -0.0, 1e-300, -1e-300, 50.0, -50.0, 800.0, -800.0, float("inf"), float("nan")]
    x = torch.cat([torch.tensor(edges, dtype=torch.float64), randn(9001) * 5])
    x = x[x.isfinite() | torch.tensor(ours in (J.relu, J.leaky_relu))]
    y = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(stock(y).sum(), y)
    found = ours(x.to(device)).values().cpu()
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_flatten_dropout_and_batch_norm(device):
    x = randn(3, 4, 5)
    check(J.flatten(x.shape, x.dtype, device), lambda x: x.flatten(), x, device)
    mask = randn(3, 4, 5, seed=1) > 0
    there = mask.to(device)
    check(J.dropout(there, 0.3, x.dtype), lambda x: x * mask / 0.7, x, device)
    check(J.dropout(there & False, 1.0, x.dtype), lambda x: x * 0.0, x, device)
    mean, var, weight = randn(3), randn(3).abs(), randn(3, seed=4)
    for w in (None, weight):
        found = J.batch_norm(x.shape, var.to(device), None if w is None else w.to(device), 1e-3)

        def function(x, w=w):
            return F.batch_norm(x[None], mean, var, w, None, eps=1e-3)

        check(found, function, x, device)
