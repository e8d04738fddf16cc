"""Cells that PyTorch lacks under torch.func: each member's gradients of all operands."""

import pytest
import torch
from torch.func import grad, vmap

import bppsa_lightning as bl

T, B, I, H, P, V = 6, 2, 4, 3, 2, 5


def tensor(*shape):
    return torch.randn(shape, dtype=torch.float64) / 2


CASES = {
    "ligru": (bl.ops.ligru, (B, H), (2 * H, I), (2 * H, H), (2 * H,), (2 * H,)),
    "peephole": (
        bl.ops.peephole_lstm, (B, H), (B, H), (4 * H, I), (4 * H, H), (3 * H,), (4 * H,), (4 * H,)
    ),
    "projected peephole": (
        bl.ops.peephole_lstm, (B, P), (B, H), (4 * H, I), (4 * H, P), (3 * H,), (4 * H,), (4 * H,),
        (P, H),
    ),
    "indrnn": (bl.ops.indrnn, (B, H), (H,)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_each_member(case, reverse):
    torch.manual_seed(0)
    layer, *shapes = CASES[case]
    features = H if case == "indrnn" else I
    operands, xs = tuple(tensor(*shape) for shape in shapes), tensor(V, T, B, features)

    def loss(operands, x):
        return sum(result.square().sum() for result in layer(x, *operands, reverse=reverse))

    found = vmap(grad(loss), (None, 0))(operands, xs)
    for v, x in enumerate(xs):
        own = [t.clone().requires_grad_() for t in operands]
        wanted = torch.autograd.grad(loss(own, x), own)
        for mine, w in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine[v], w, rtol=1e-10, atol=1e-10)
