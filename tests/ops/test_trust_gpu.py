"""On a CUDA device products of Jacobians are used where they can be, and walked around where not.

A wrong product that is infinite, NaN or huge would be walked around, and every result be right:
here the walks are counted.
"""

import pytest
import torch
from support.cases import chain, needs_gpu, relative_error

import bppsa_lightning as bl
from bppsa_lightning import reference
from ops.test_recurrent_gpu import check, each_cell, incoming, layer, ours, stock

pytestmark = needs_gpu

PLANS = [("chunked", 16, 0), ("blelloch", 0, 3)]
each_plan = pytest.mark.parametrize("plan", PLANS, ids=str)


@each_cell
@each_plan
@pytest.mark.parametrize("H", [6, 20, 32, 64])
def test_recurrent_products_are_used(cell, plan, H):
    if cell == "rnn_relu":
        pytest.skip("where all units are at rest a product is 0, and is not trusted")
    operands, gradients = layer(cell, 300, 4, 1, H), incoming(cell, 300, 4, H)
    before = bl.ops.untrusted_products()
    check(ours(cell, operands, gradients, plan), stock(cell, operands, gradients))
    assert bl.ops.untrusted_products() == before


@each_plan
@pytest.mark.parametrize("H", [1, 8, 20, 33, 64, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dense_products_are_used(plan, H, dtype):
    jac_t, grad = chain(200, 3, H, dtype, "cuda", gain=0.9)
    algorithm, chunk, levels = plan
    before = bl.ops.untrusted_products()
    g = torch.ops.bppsa.reverse_scan(jac_t, grad, algorithm, chunk, levels, False)
    assert bl.ops.untrusted_products() == before
    wanted = reference.reverse_scan(jac_t.cpu().double(), grad.cpu().double())
    assert relative_error(g, wanted) < (1e-5 if dtype is torch.float32 else 1e-12)


def test_diagonal_products_are_used():
    decay = torch.rand(5000, 3, 40, device="cuda") * 0.2 + 0.85
    grad = torch.randn(5001, 3, 40, device="cuda")
    before = bl.ops.untrusted_products()
    g = bl.ops.diagonal_scan(decay, grad)
    assert bl.ops.untrusted_products() == before
    wanted = bl.ops.diagonal_scan(decay.cpu().double(), grad.cpu().double())
    assert relative_error(g, wanted) < 1e-5


@each_plan
def test_products_out_of_range_are_walked_around(plan):
    jac_t, grad = chain(200, 3, 20, torch.float32, "cuda", gain=1e5)
    grad *= 0
    algorithm, chunk, levels = plan
    before = bl.ops.untrusted_products()
    g = torch.ops.bppsa.reverse_scan(jac_t, grad, algorithm, chunk, levels, False)
    assert bl.ops.untrusted_products() > before
    assert not g.any()
