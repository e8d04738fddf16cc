"""Layers over samples of different lengths: each as by itself; padding is passed over."""

from dataclasses import replace

import pytest
import torch

from bppsa_lightning import ops, planner
from bppsa_lightning._cells import CELLS
from bppsa_lightning.recurrent.packed import with_frozen_padding

forward = torch.ops.bppsa.recurrent_ragged.default
backward = torch.ops.bppsa.recurrent_ragged_backward.default
F64 = {"dtype": torch.float64}
NAMES = ["rnn_tanh", "rnn_relu", "gru", "lstm", "ligru", "peephole"]


def layer(cell, I, H, P=None):
    """w_ih, w_hh, b_ih, b_hh, w_hr; an LSTM's have a last input that holds its c."""
    GH = CELLS[cell].gates * H
    w_ih = torch.randn(GH, I, **F64) / I**0.5
    if CELLS[cell].has_c:
        w_ih = with_frozen_padding(w_ih, CELLS[cell])
    w_hh = torch.randn(GH, P or H, **F64) / H**0.5
    b_ih, b_hh = torch.randn(2, GH, **F64)
    return w_ih, w_hh, b_ih, b_hh, None if P is None else torch.randn(P, H, **F64) / H**0.5


def case(cell, lengths, I=3, H=5, P=None, T=None):
    """Operands with such samples, and padding in which c stands still."""
    T, B = T or max(lengths), len(lengths)
    x = torch.randn(T, B, I, **F64)
    if CELLS[cell].has_c:
        x = torch.cat([x, torch.zeros(T, B, 1, **F64)], -1)
    for b, length in enumerate(lengths):
        x[length:, b] = 0
        x[length:, b, -1] = float(CELLS[cell].has_c)
    h0, c0 = torch.randn(B, P or H, **F64), torch.randn(B, H, **F64)
    operands = ops.Operands(x, h0, c0 if CELLS[cell].has_c else None, *layer(cell, I, H, P))
    leaves = [t if t is None else t.requires_grad_() for t in operands]
    return ops.Operands(*leaves)


def by_itself(cell, operands, lengths):
    """Each sample alone: outputs, c_n of all."""
    outputs, cells = [], []
    for b, length in enumerate(lengths):
        own = operands._replace(
            x=operands.x[:length, b : b + 1],
            h0=operands.h0[b : b + 1],
            c0=None if operands.c0 is None else operands.c0[b : b + 1],
        )
        output, _, c_n = ops.run_layer(cell, own, algorithm="linear")
        outputs.append(output[:, 0])
        cells.append(c_n)
    return outputs, torch.cat(cells)


def gradients(outputs, c_n, operands, weights):
    of = [t for t in operands if t is not None]
    loss = sum((o * w).sum() for o, w in zip(outputs, weights, strict=True)) + (c_n**2).sum()
    return torch.autograd.grad(loss, of)


LENGTHS = [
    [1] * 9,
    [40] * 9,
    [100, 99, 65, 64, 63, 33, 32, 31, 17, 16, 15, 2, 1],
    [70, 48, 48, 5, 64, 33, 32, 1],  # of two groups
    [3, 100, 16, 90],  # in no order: none is passed over that another needs
]


@pytest.mark.parametrize("cell", NAMES)
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} samples")
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_sample_is_as_by_itself(cell, lengths, groups, threads):
    torch.manual_seed(0)
    operands = case(cell, lengths)
    weights = [torch.randn(length, 5, **F64) for length in lengths]
    alone, c_alone = by_itself(cell, operands, lengths)
    wanted = gradients(alone, c_alone, operands, weights)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        told = ops.Ragged(torch.tensor(lengths), groups)
        output, _, c_n = ops.run_layer(cell, operands, False, "linear", ragged=told)
        found = [output[:length, b] for b, length in enumerate(lengths)]
        torch.testing.assert_close(found, alone)
        torch.testing.assert_close(c_n, c_alone)
        with torch.no_grad():
            free, _, c_free = ops.run_layer(cell, operands, ragged=told)
        assert torch.equal(free, output) and torch.equal(c_free, c_n)
        torch.set_num_threads(4 - threads)  # the backward may have others
        own = gradients(found, c_n, operands, weights)
    finally:
        torch.set_num_threads(before)
    for b, length in enumerate(lengths):
        wanted[0][length:, b] = own[0][length:, b] = 0
    torch.testing.assert_close(own, wanted)


def test_a_projection_and_gates_that_are_computed_again():
    torch.manual_seed(0)
    lengths = LENGTHS[2]
    for cell, P, saved in (("lstm", 4, "GATES"), ("lstm", None, "STATES"), ("gru", None, "STATES")):
        operands = case(cell, lengths, P=P)
        weights = [torch.randn(length, P or 5, **F64) for length in lengths]
        plan = planner.plan(ops.request_of(cell, operands, "linear"))
        plan = replace(plan, saved=planner.Saved[saved])
        told = ops.Ragged(torch.tensor(lengths), 1)
        output, _, c_n = ops.run_layer(cell, operands, plan=plan, ragged=told)
        found = [output[:length, b] for b, length in enumerate(lengths)]
        own = gradients(found, c_n, operands, weights)
        alone, c_alone = by_itself(cell, operands, lengths)
        wanted = gradients(alone, c_alone, operands, weights)
        for b, length in enumerate(lengths):
            wanted[0][length:, b] = own[0][length:, b] = 0
        torch.testing.assert_close(own, wanted)


def test_second_derivatives():
    torch.manual_seed(0)
    lengths = [20, 3, 2, 1]
    operands = case("gru", lengths)
    of = [t for t in operands if t is not None]

    def twice(outputs):
        loss = sum((o**2).sum() for o in outputs)
        first = torch.autograd.grad(loss, of[1:], create_graph=True)
        return torch.autograd.grad(sum((g**2).sum() for g in first), of[1:])

    told = ops.Ragged(torch.tensor(lengths), 1)
    output, *_ = ops.run_layer("gru", operands, algorithm="linear", ragged=told)
    found = twice([output[:length, b] for b, length in enumerate(lengths)])
    torch.testing.assert_close(found, twice(by_itself("gru", operands, lengths)[0]))


def test_what_follows_an_end_is_put_out_as_0():
    operands = case("gru", [100, 20, 4])
    output, *_ = ops.run_layer("gru", operands, ragged=ops.Ragged(torch.tensor([100, 20, 4]), 1))
    assert not output[32:, 1].any() and not output[16:, 2].any()


def test_other_scans_take_all_steps():
    operands = case("gru", [100, 20, 4])
    told = ops.Ragged(torch.tensor([100, 20, 4]), 1)
    for algorithm in ("chunked", "blelloch"):
        output, *_ = ops.run_layer("gru", operands, False, algorithm, ragged=told)
        whole, *_ = ops.run_layer("gru", operands, False, algorithm)
        assert torch.equal(output, whole)


@pytest.mark.parametrize(
    ("lengths", "groups", "message"),
    [
        (torch.tensor([3, 2]), 1, r"lengths: wanted \(B,\) int64"),
        (torch.tensor([3, 2, 1], dtype=torch.int32), 1, r"lengths: wanted \(B,\) int64"),
        (torch.tensor([[3, 2, 1]]), 1, r"lengths: wanted \(B,\) int64"),
        (torch.tensor([3, 0, 1]), 1, "lengths: found 0, wanted 1 to T"),
        (torch.tensor([3, 7, 1]), 1, "lengths: found 7, wanted 1 to T"),
        (torch.tensor([3, 2, 1]), 0, "groups: found 0, wanted 1 to B"),
        (torch.tensor([3, 2, 1]), 4, "groups: found 4, wanted 1 to B"),
    ],
)
def test_wrong_lengths_are_named(lengths, groups, message):
    operands = case("gru", [3, 2, 1])
    for backwards in (False, True):
        arguments = ["gru", *operands, 2, torch.tensor([3, 2, 1]), 1]
        if backwards:
            output, *_, kept = forward(*arguments)
            arguments = ["gru", output, None, output, kept, *operands, lengths, groups, 0xFF]
        else:
            arguments[-2:] = lengths, groups
        with pytest.raises(RuntimeError, match=message):
            (backward if backwards else forward)(*arguments)


def test_the_fake_kernels_have_the_sizes_of_the_real_ones():
    operands = [t if t is None else t.detach() for t in case("lstm", [3, 2, 1])]
    lengths = torch.tensor([3, 2, 1])
    torch.library.opcheck(
        forward, ("lstm", *operands, 2, lengths, 1), test_utils=("test_schema", "test_faketensor")
    )
    output, _, c_n, kept = forward("lstm", *operands, 2, lengths, 1)
    arguments = "lstm", output, c_n, output, kept, *operands, lengths, 1, 0x7F
    torch.library.opcheck(backward, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("samples", [1, 2, 5, 6, 7, 63, 64, 65, 200])
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7])
def test_side_by_side(samples, threads):
    order, groups = ops.side_by_side(samples, threads)
    assert sorted(order) == list(range(samples)) and 1 <= groups <= samples
    assert samples / groups <= 64 or groups == samples
    starts = [samples * g // groups for g in range(groups + 1)]
    parts = [order[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    if samples % groups == 0:  # the longest of each group are the longest of all
        assert sorted(part[0] for part in parts) == list(range(groups))
    assert sum(list(part) != sorted(part) for part in parts) <= groups // 2
