"""bl.ops.rnn, gru and lstm: against the reference and PyTorch; gradients, opcheck, torch.compile.

T steps, B batch, I input, H hidden, P state that is put out.
"""

import itertools

import pytest
import torch
from support.cases import plans, relative_error
from support.helpers import assert_close
from support.recurrent_cases import (
    EXACT,
    SIZES,
    each_algorithm,
    each_cell,
    each_keep,
    spread,
    turned,
)
from support.recurrent_layers import (
    ALGORITHMS,
    NAMES,
    cotangents,
    draw,
    ours,
    results,
    true,
)


@each_cell
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_equals_the_reference(cell, size, keeping):
    tensors = draw(cell, size)
    incoming = cotangents(cell, tensors)
    for reverse in (False, True):
        wanted = results(true, cell, tensors, incoming, reverse=reverse)
        for keep, algorithm in itertools.product((1, 2), ALGORITHMS):
            keeping(keep)
            found = results(ours, cell, tensors, incoming, reverse=reverse, algorithm=algorithm)
            assert_close(found, wanted, EXACT)


@each_cell
def test_is_not_the_reference_of_another_layer(cell):
    """The comparison can fail: one recurrent weight off by 1e-7 is seen in every gradient."""
    tensors = draw(cell, SIZES["some"])
    incoming = cotangents(cell, tensors)
    wanted = results(true, cell, tensors, incoming)
    tensors["w_hh"][0, 0] += 1e-7
    found = results(ours, cell, tensors, incoming)
    assert all(relative_error(found[name], wanted[name]) > EXACT for name in wanted)


@each_cell
@pytest.mark.parametrize(
    "absent",
    [("h0",), ("c0",), ("h0", "c0"), ("b_ih",), ("b_hh",), ("b_ih", "b_hh"), ("h0", "c0", "b_hh")],
    ids=", ".join,
)
def test_what_may_be_absent(cell, absent):
    tensors = draw(cell, SIZES["some"])
    tensors = {name: t for name, t in tensors.items() if name not in absent}
    incoming = cotangents(cell, tensors)
    for reverse in (False, True):
        wanted = results(true, cell, tensors, incoming, reverse=reverse)
        assert_close(results(ours, cell, tensors, incoming, reverse=reverse), wanted, EXACT)


@each_cell
@each_keep
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_every_plan_and_every_set_of_wanted_gradients(cell, keep, reverse):
    """Below Python, where chunks and levels may be anything and each gradient is asked for."""
    tensors = draw(cell, (13, 3, 2, 5))
    incoming = cotangents(cell, tensors)
    wanted = results(true, cell, tensors, incoming, reverse=reverse)
    operands = [tensors.get(name) for name in NAMES]
    everything = sum(1 << i for i, t in enumerate(operands) if t is not None)

    def gradients(plan, bits):
        output, _, _, kept = torch.ops.bppsa.recurrent(cell.name, *operands, reverse, keep, plan[0])
        return torch.ops.bppsa.recurrent_backward(
            *(cell.name, *(incoming.get(name) for name in ("output", "h_n", "c_n"))),
            *(output, kept, *operands, reverse, *plan, bits),
        )

    def check(found, bits, where):
        for i, name in enumerate(NAMES):
            if bits >> i & 1:
                error = relative_error(found[i], wanted[f"grad of {name}"])
                assert error < EXACT, (where, bits, name, error)
            else:
                assert found[i].numel() == 0, (where, bits, name)

    for plan in plans(13):
        check(gradients(plan, everything), everything, plan)
    for bits in range(everything + 1):
        if bits & ~everything == 0:
            for plan in (("linear", 0, 0), ("chunked", 3, 0)):
                check(gradients(plan, bits), bits, plan)


@each_cell
@each_keep
def test_frozen_tensors_get_no_gradient_and_the_others_the_same(cell, keep, keeping):
    keeping(keep)
    tensors = draw(cell, (5, 2, 2, 3))
    incoming = cotangents(cell, tensors)
    wanted = results(true, cell, tensors, incoming)
    for n in range(1, len(tensors) + 1):
        for learning in itertools.combinations(tensors, n):
            given = {
                name: t.clone().requires_grad_(name in learning) for name, t in tensors.items()
            }
            found = results(ours, cell, given, incoming)
            assert_close(found, {name: wanted[name] for name in found}, EXACT)
            assert len(found) == n + len(incoming)


@each_cell
@each_keep
def test_gradients_that_flow_in_at_some_results_only(cell, keep, keeping):
    keeping(keep)
    tensors = draw(cell, SIZES["some"])
    names = list(cotangents(cell, tensors))
    for n in range(1, len(names) + 1):
        for some in itertools.combinations(names, n):
            incoming = cotangents(cell, tensors, some)
            for reverse in (False, True):
                wanted = results(true, cell, tensors, incoming, reverse=reverse)
                found = results(ours, cell, tensors, incoming, reverse=reverse)
                assert_close(found, wanted, EXACT)


@each_cell
@each_algorithm
@pytest.mark.parametrize("view", [spread, turned])
def test_strides(cell, algorithm, view):
    plain = draw(cell, SIZES["some"])
    incoming = cotangents(cell, plain)
    wanted = results(true, cell, plain, incoming)
    found = results(
        ours,
        cell,
        {name: view(t) for name, t in plain.items()},
        {name: view(t) for name, t in incoming.items()},
        algorithm=algorithm,
    )
    assert_close(found, wanted, EXACT)


@each_cell
@each_algorithm
def test_a_gradient_that_is_one_number_everywhere(cell, algorithm):
    """output.sum() sends a number expanded with strides of 0, and mean over time one of them."""
    tensors = draw(cell, SIZES["some"])
    output = true(cell, tensors)["output"]
    for incoming in (
        output.new_ones(()).expand(output.shape),
        torch.randn_like(output[:1]).expand(output.shape),
        torch.randn_like(output[:, :1]).expand(output.shape),
        torch.randn_like(output[..., :1]).expand(output.shape),
    ):
        incoming = {"output": incoming}
        wanted = results(true, cell, tensors, incoming)
        assert_close(results(ours, cell, tensors, incoming, algorithm=algorithm), wanted, EXACT)
