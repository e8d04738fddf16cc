"""Derivatives of bl.ops.rnn, gru and lstm: first, second, of tensors that change in place."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from support.cases import relative_error
from support.changed import needs_to_be_told
from support.recurrent_cases import EXACT, SIZES, each_algorithm, each_cell, each_keep
from support.recurrent_layers import (
    draw,
    ours,
    true,
)
from torch.multiprocessing.reductions import StorageWeakRef


@each_cell
@each_algorithm
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_gradients_of_first_and_second_order(cell, algorithm, reverse, keeping):
    tensors = draw(cell, (4, 2, 2, 2))

    def function(*operands):
        return tuple(ours(cell, dict(zip(tensors, operands)), algorithm, reverse).values())

    leaves = [t.requires_grad_() for t in tensors.values()]
    for keep in (1, 2):
        keeping(keep)
        assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


@each_cell
@each_keep
def test_second_order_of_some_tensors_by_some_others(cell, keep, keeping):
    keeping(keep)
    plain = draw(cell, (5, 2, 2, 3))

    def penalty(layer, first, second):
        tensors = {n: t.clone().requires_grad_(n in (first, second)) for n, t in plain.items()}
        output = layer(cell, tensors)["output"].square().sum()
        (inner,) = torch.autograd.grad(output, tensors[first], create_graph=True)
        return torch.autograd.grad(inner.square().sum(), tensors[second])[0]

    for first, second in itertools.permutations(plain, 2):
        found, wanted = penalty(ours, first, second), penalty(true, first, second)
        assert relative_error(found, wanted) < EXACT, (first, second)


@each_cell
def test_what_no_gradient_needs_may_change_in_place(cell):
    """x is kept for the gradient of w_ih, w_ih for that of x; a second derivative needs both."""
    plain = draw(cell, SIZES["some"])
    for changing, learning in (("x", {"h0", "w_hh"}), ("w_ih", {"h0", "w_hh", "w_ih"})):

        def output(changing=changing, learning=learning):
            tensors = {n: t.clone().requires_grad_(n in learning) for n, t in plain.items()}
            found = ours(cell, tensors)["output"].sum()
            return found, tensors, [tensors[n] for n in sorted(learning)]

        found, _, leaves = output()
        wanted = torch.autograd.grad(found, leaves)
        found, tensors, leaves = output()
        with torch.no_grad():
            tensors[changing].zero_()
        gradients = torch.autograd.grad(found, leaves, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(gradients, wanted))
        with pytest.raises(RuntimeError, match="modified in place"):
            torch.autograd.grad(found, leaves, create_graph=True)


@each_cell
def test_what_a_gradient_needs_may_not_change_in_place(cell):
    tensors = {n: t.requires_grad_() for n, t in draw(cell, SIZES["some"]).items()}
    loss = ours(cell, tensors)["output"].square().sum()
    with torch.no_grad():
        tensors["w_hh"].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@needs_to_be_told
@each_cell
@pytest.mark.parametrize("reverse", [False, True])
def test_an_output_that_was_changed_in_place_is_computed_again(cell, reverse):
    """To the bit, as often as a backward asks; if its input is still there."""
    plain = draw(cell, SIZES["some"])

    def loss(change, *learning):
        tensors = {n: t.clone().requires_grad_(n in learning) for n, t in plain.items()}
        output = ours(cell, tensors, reverse=reverse)["output"]
        found = output.sum()
        with torch.no_grad():
            change(output)
        return found, tensors, [tensors[n] for n in learning]

    wanted, _, leaves = loss(lambda output: None, *plain)
    wanted = torch.autograd.grad(wanted, leaves)
    for change in (torch.Tensor.zero_, lambda output: output.detach()[0, 0].fill_(5)):
        found, _, leaves = loss(change, *plain)
        for _ in range(2):
            gradients = torch.autograd.grad(found, leaves, retain_graph=True)
            assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))

    found, tensors, leaves = loss(torch.Tensor.zero_, "h0", "w_hh")
    tensors["x"].zero_()
    with pytest.raises(
        RuntimeError, match="output was modified, too, and is computed again from the original"
    ):
        torch.autograd.grad(found, leaves)


@each_cell
@pytest.mark.parametrize("offloaded", [False, True])
def test_what_was_saved_ends_with_the_backward(cell, offloaded):
    """Or with the forward, where a hook keeps a copy elsewhere; the graph may live on."""
    tensors = {n: t.requires_grad_() for n, t in draw(cell, SIZES["some"]).items()}
    hooks = torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t)
    with hooks if offloaded else nullcontext():
        found = ours(cell, tensors)
    output = StorageWeakRef(found.pop("output").untyped_storage())
    assert output.expired() == offloaded
    found["h_n"].sum().backward(retain_graph=True)
    found["h_n"].sum().backward()
    assert output.expired()


@each_cell
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_backward_under_autocast_keeps_its_precision(cell, create_graph):
    tensors = {n: t.requires_grad_() for n, t in draw(cell, (6, 2, 3, 4), torch.float32).items()}

    def gradients():
        output = ours(cell, tensors)["output"].sum()
        return torch.autograd.grad(output, list(tensors.values()), create_graph=create_graph)

    with torch.autocast("cpu", torch.bfloat16):
        inside = gradients()
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(inside, gradients()))
