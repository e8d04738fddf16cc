"""Gradients of weights sample by sample: those of a batch of one, without a loop over samples."""

import pytest
import torch
from support.transformed import CELLS

from bppsa_lightning.ops import Operands, run_layer, run_sampled_layer

T, B, I, H = 6, 4, 3, 5


def operands(cell, projected=False, bias=True, starts=True, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def tensor(*size):
        return (torch.randn(*size, dtype=dtype, generator=generator) / 2).requires_grad_()

    rows, P = CELLS[cell] * H, 2 if projected else H
    return Operands(
        tensor(T, B, I),
        tensor(B, P) if starts else None,
        tensor(B, H) if starts and cell == "lstm" else None,
        tensor(rows, I),
        tensor(rows, P),
        tensor(rows) if bias else None,
        tensor(rows) if bias else None,
        tensor(P, H) if projected else None,
    )


def loss(found, b=slice(None)):
    """Of some samples, in all that a layer gives."""
    output, h_n, c_n = found
    c = c_n[b] if c_n.numel() else c_n
    return output[:, b].pow(3).sum() + 2 * h_n[b].square().sum() + c.square().sum()


CASES = [(cell, False) for cell in CELLS] + [("lstm", True)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bias, starts", [(True, True), (False, False)])
@pytest.mark.parametrize("cell, projected", CASES)
def test_each_sample_has_its_own_gradients(cell, projected, bias, starts, reverse):
    own = operands(cell, projected, bias, starts)
    kept = []
    found = run_sampled_layer(cell, own, reverse, "auto", kept.append)
    leaves = [t for t in own if t is not None]
    sums = torch.autograd.grad(loss(found), leaves)
    wanted = torch.autograd.grad(loss(run_layer(cell, own, reverse)), leaves)
    for a, b in zip(sums, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    weights = [t for t in own[3:] if t is not None]
    whole = run_layer(cell, own, reverse)
    for b in range(B):
        each = torch.autograd.grad(loss(whole, slice(b, b + 1)), weights, retain_graph=True)
        for a, t in zip([g for g in kept[0] if g is not None], each, strict=True):
            torch.testing.assert_close(a[b], t, rtol=1e-11, atol=1e-12)


def test_what_requires_no_gradient_is_not_computed():
    own = operands("gru")._replace(b_ih=None)
    for t in (own.x, own.h0, own.w_ih):
        t.requires_grad_(False)
    kept = []
    loss(run_sampled_layer("gru", own, False, "auto", kept.append)).backward()
    assert [g is not None for g in kept[0]] == [False, True, False, True, False]
    assert own.w_hh.grad is not None and own.x.grad is None


def test_gradients_of_the_last_cell_alone():
    own = operands("lstm")
    kept = []
    run_sampled_layer("lstm", own, False, "auto", kept.append)[2][1].sum().backward()
    assert kept[0][1][1].any()
    assert not kept[0][1][0].any() and not kept[0][1][2:].any()


def test_no_samples():
    own = operands("lstm")
    empty = own._replace(x=own.x[:, :0], h0=own.h0[:0], c0=own.c0[:0])
    kept = []
    loss(run_sampled_layer("lstm", empty, False, "auto", kept.append)).backward()
    assert kept[0][0].shape == (0, 4 * H, I) and not own.w_ih.grad.any()


def test_float32_is_as_exact_as_a_layer():
    own = operands("gru", dtype=torch.float32)
    kept = []
    loss(run_sampled_layer("gru", own, False, "auto", kept.append)).backward()
    wide = Operands(*(None if t is None else t.detach().double().requires_grad_() for t in own))
    kept_wide = []
    loss(run_sampled_layer("gru", wide, False, "auto", kept_wide.append)).backward()
    for a, b in zip(kept[0][:4], kept_wide[0][:4], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)
