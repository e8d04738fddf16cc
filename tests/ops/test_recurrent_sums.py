"""Layers without W_ih: x is what the gates are sums of."""

import pytest
import torch
from support.recurrent_cases import SIZES, each_algorithm, each_cell, each_keep
from support.recurrent_layers import draw, ours

import bppsa_lightning as bl


def drawn(cell, sizes, dtype=torch.float64):
    """Tensors of a layer whose input has as many numbers as its gates have rows."""
    tensors = draw(cell, sizes, dtype)
    rows = len(tensors["w_hh"])
    x = torch.randn(*tensors["x"].shape[:2], rows, dtype=dtype)
    return tensors | {"x": x, "w_ih": None}


def with_identity(tensors):
    return tensors | {"w_ih": torch.eye(len(tensors["w_hh"]), dtype=tensors["x"].dtype)}


def gradients(cell, tensors, algorithm="auto"):
    leaves = {
        name: t.clone().requires_grad_()
        for name, t in tensors.items()
        if t is not None and name != "w_ih"
    }
    results = ours(cell, tensors | leaves, algorithm)
    torch.manual_seed(1)
    loss = sum((t * torch.randn_like(t)).sum() for t in results.values())
    return results, dict(zip(leaves, torch.autograd.grad(loss, leaves.values()), strict=True))


@each_cell
@each_algorithm
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_x_takes_the_place_of_what_the_identity_makes_of_it(cell, algorithm, sizes):
    torch.manual_seed(0)
    tensors = drawn(cell, sizes)
    for a, b in zip(
        gradients(cell, tensors, algorithm),
        gradients(cell, with_identity(tensors), algorithm),
        strict=True,
    ):
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["gru", "lstm", "ligru", "rnn"])
@pytest.mark.parametrize("reverse", [False, True])
def test_any_strides_and_either_direction(kind, reverse):
    torch.manual_seed(0)
    G = {"rnn": 1, "gru": 3, "lstm": 4, "ligru": 2}[kind]
    x = torch.randn(3, 9, G * 5, dtype=torch.float64).transpose(0, 1)
    states = (None, None) if kind == "lstm" else (None,)
    w_hh, eye = torch.randn(G * 5, 5).double() / 3, torch.eye(G * 5).double()
    run = getattr(bl.ops, kind)
    found = run(x, *states, None, w_hh, reverse=reverse)
    wanted = run(x.contiguous(), *states, eye, w_hh, reverse=reverse)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_gradients_and_their_gradients():
    torch.manual_seed(0)
    x = torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True)
    w_hh = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)

    def run(x, w_hh):
        return bl.ops.gru(x, None, None, w_hh)

    assert torch.autograd.gradcheck(run, (x, w_hh))
    assert torch.autograd.gradgradcheck(run, (x, w_hh))


def test_under_transforms_and_in_a_graph():
    torch.manual_seed(0)
    x, w_hh = torch.randn(4, 7, 2, 9).double(), torch.randn(9, 3).double() / 2
    each = torch.stack([bl.ops.gru(one, None, None, w_hh)[0] for one in x])
    found = torch.vmap(lambda one: bl.ops.gru(one, None, None, w_hh)[0])(x)
    torch.testing.assert_close(found, each, rtol=1e-12, atol=1e-12)

    def step(x):
        return bl.ops.gru(x, None, None, w_hh)[0].square().sum()

    leaf = x[0].clone().requires_grad_()
    [wanted] = torch.autograd.grad(step(leaf), leaf)
    [graphed] = torch.autograd.grad(torch.compile(step, fullgraph=True)(leaf), leaf)
    torch.testing.assert_close(graphed, wanted, rtol=1e-12, atol=1e-12)


def test_the_operator_keeps_its_contract():
    torch.manual_seed(0)
    x, w_hh = torch.randn(4, 2, 6, requires_grad=True), torch.randn(6, 2, requires_grad=True)
    arguments = ("gru", x, None, None, None, w_hh, None, None, None, False, 2, "auto")
    torch.library.opcheck(torch.ops.bppsa.recurrent.default, arguments)


@each_cell
@each_keep
@pytest.mark.parametrize("reverse", [False, True])
def test_what_a_forward_did_not_keep_is_computed_again(cell, keep, reverse):
    if keep == 1 and cell.projected:
        pytest.skip("a projected layer keeps all or nothing")
    torch.manual_seed(0)
    tensors = drawn(cell, SIZES["above a register"])
    tensors["h0"] = torch.randn_like(tensors["h0"])

    def run(tensors):
        names = ("x", "h0", "c0", "w_ih", "w_hh", "b_ih", "b_hh", "w_hr")
        b_hh = (
            {} if cell.name != "peephole" else {"b_hh": torch.randn(len(tensors["w_hh"])).double()}
        )
        operands = [(tensors | b_hh).get(name) for name in names]
        output, h_n, _, kept = torch.ops.bppsa.recurrent(
            cell.name, *operands, reverse, keep, "auto"
        )
        incoming = torch.ones_like(output), torch.ones_like(h_n), None
        return torch.ops.bppsa.recurrent_backward(
            cell.name, *incoming, output, kept, *operands, reverse, "linear", 1, 0, 0b00010111
        )

    torch.manual_seed(1)
    found = run(tensors)
    torch.manual_seed(1)
    wanted = run(with_identity(tensors))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["rnn", "gru", "ligru", "lstm"])
def test_gradients_of_each_member_under_vmap(kind):
    torch.manual_seed(0)
    G, H = {"rnn": 1, "gru": 3, "lstm": 4, "ligru": 2}[kind], 3
    xs, w_hh = torch.randn(5, 6, 2, G * H).double(), torch.randn(G * H, H).double() / 2
    states = (None, None) if kind == "lstm" else (None,)

    def loss(x, w_hh):
        return getattr(bl.ops, kind)(x, *states, None, w_hh)[0].square().sum()

    found = torch.vmap(torch.func.grad(loss, (0, 1)), (0, None))(xs, w_hh)
    for v, x in enumerate(xs):
        own = [t.clone().requires_grad_() for t in (x, w_hh)]
        for mine, wanted in zip(found, torch.autograd.grad(loss(*own), own), strict=True):
            torch.testing.assert_close(mine[v], wanted, rtol=1e-10, atol=1e-10)


def test_an_infinite_sum_is_no_matter_of_the_other_gates():
    """As it would be of a product with the identity, of zeros and infinity."""
    torch.manual_seed(0)
    x, w_hh = torch.randn(4, 2, 6).double(), torch.randn(6, 2).double() / 2
    x[1, 0, 2] = torch.inf  # a gate that stays open
    xs = torch.stack([x, x])
    wanted = bl.ops.gru(x, None, None, w_hh)[0]
    assert wanted.isfinite().all()
    found = torch.vmap(lambda x: bl.ops.gru(x, None, None, w_hh)[0])(xs)
    torch.testing.assert_close(found[1], wanted, rtol=1e-12, atol=1e-12)
    tangent = torch.func.jvp(
        lambda x: bl.ops.gru(x, None, None, w_hh)[0], (x,), (x.new_ones(4, 2, 6),)
    )
    torch.testing.assert_close(tangent[0], wanted, rtol=1e-12, atol=1e-12)
