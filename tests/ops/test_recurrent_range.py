"""bl.ops.rnn, gru and lstm at the ends of the range: overflow, infinities, NaN, subnormals."""

import pytest
import torch
from support.cases import relative_error
from support.recurrent_cases import EXACT, each_algorithm, each_cell, each_keep
from support.recurrent_layers import (
    CELLS,
    cotangents,
    draw,
    ours,
    results,
    stock,
    true,
    widened,
)

import bppsa_lightning as bl


@each_cell
@each_algorithm
@each_keep
def test_exploding_gradients_are_finite_where_pytorchs_are(cell, algorithm, keep, keeping):
    keeping(keep)
    for seed in range(2):
        tensors = draw(cell, (1024, 2, 2, 8), torch.float32, gain=3.0, seed=seed)
        incoming = cotangents(cell, tensors)
        theirs = results(stock, cell, tensors, incoming)
        found = results(ours, cell, tensors, incoming, algorithm=algorithm)
        for name, want in theirs.items():
            # At the edge of the range, finite or not depends on the order of a sum.
            assert found[name][want.abs() < 1e36].isfinite().all(), (seed, name)


@each_algorithm
def test_relu_stops_an_infinite_gradient_where_torch_does(algorithm):
    """At dead units sqrt has an infinite slope, and 0 * inf would be a NaN."""
    cell = CELLS["RNN-relu"]
    tensors = {n: t.requires_grad_() for n, t in draw(cell, (12, 3, 2, 5)).items()}
    leaves = list(tensors.values())
    wanted = torch.autograd.grad(stock(cell, tensors)["output"].sqrt().sum(), leaves)
    output = ours(cell, tensors, algorithm)["output"]
    assert (output == 0).any()
    found = torch.autograd.grad(output.sqrt().sum(), leaves)
    for a, b in zip(found, wanted):
        assert b.isfinite().all() and relative_error(a, b) < 1e-12


@each_algorithm
def test_a_relu_that_grows_to_infinity_does_as_in_torch(algorithm):
    cell = CELLS["RNN-relu"]
    tensors = draw(cell, (300, 2, 2, 4), torch.float32)
    tensors["w_hh"] = tensors["w_hh"].abs() * 3
    incoming = cotangents(cell, tensors, ["h_n"])
    wanted = results(stock, cell, tensors, incoming)
    found = results(ours, cell, tensors, incoming, algorithm=algorithm)
    assert wanted["h_n"].isinf().all()
    assert torch.equal(found["output"].isinf(), wanted["output"].isinf())
    for name, want in wanted.items():
        assert found[name][want.abs() < 1e36].isfinite().all(), name


@each_cell
def test_nan_travels(cell):
    tensors = draw(cell, (6, 2, 2, 20))
    tensors["x"][2, 0, 1] = torch.nan
    output = ours(cell, tensors)["output"]
    assert output[:2].isfinite().all() and output[2:, 0].isnan().all()
    assert output[:, 1].isfinite().all()


@each_cell
@pytest.mark.parametrize("H", [4, 8, 12, 20, 33])
@pytest.mark.parametrize("inputs", [2, 300])
def test_an_infinite_input_saturates_gates_as_in_torch(cell, H, inputs):
    """Weights that stand for none (a GRU has three for x and three for h) are not met by it."""
    tensors = draw(cell, (5, 3, inputs, H))
    tensors["x"][2, 0, 1] = torch.inf
    wanted, found = stock(cell, tensors)["output"], ours(cell, tensors)["output"]
    torch.testing.assert_close(found, wanted, rtol=EXACT, atol=EXACT, equal_nan=True)


@each_cell
@each_algorithm
def test_a_gradient_that_fades_below_the_smallest_number(cell, algorithm):
    """Numbers below the smallest normal one count as zero, and nothing else is lost."""
    tensors = draw(cell, (200, 3, 2, 8), torch.float32, gain=0.1)
    incoming = cotangents(cell, tensors, ["h_n"])
    truth = results(true, cell, widened(tensors), widened(incoming))
    found = results(ours, cell, tensors, incoming, algorithm=algorithm)
    for name, want in truth.items():
        error = (found[name] - want).abs()
        size = want.abs().amax(list(range(want.dim()))[-2:], keepdim=True)  # of a step
        assert (error <= 1e-4 * size + 1e-37).all(), name


@each_cell
@pytest.mark.parametrize("flush", [False, True])
def test_the_floating_point_mode_is_left_as_it_was(cell, flush):
    small = torch.full((1 << 17,), 1e-40)  # enough for all threads
    tensors = draw(cell, (50, 16, 2, 8), torch.float32)
    if not torch.set_flush_denormal(flush):
        pytest.skip("this processor has no such mode")
    try:
        results(ours, cell, tensors, cotangents(cell, tensors))
        assert ((small * 1)[:100] == 0).all() == flush
        if not flush:
            assert (small * 1 != 0).all()
    finally:
        torch.set_flush_denormal(False)


SATURATING = {"rnn_tanh": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}


@pytest.mark.parametrize("cell", [c for c in CELLS.values() if c.name in SATURATING], ids=str)
@pytest.mark.parametrize("H", [1, 5, 20, 23])
def test_what_saturates_stays_apart(cell, H):
    """Infinite inputs saturate gates; kernels pad H, and infinity times nothing is no number."""
    P = max(1, H // 2) if cell.projected else H
    torch.manual_seed(0)
    layer = SATURATING[cell.name](3, H, **({"proj_size": P} if P != H else {}))
    x = torch.randn(6, 3, 3)
    x[2, 1, 0], x[4, 2, 2] = torch.inf, -torch.inf
    found = []
    for attached in (False, True):
        if attached:
            bl.attach(layer)
        layer.zero_grad()
        output = layer(x)[0]
        output.sum().backward()
        # The gradient of W_ih holds 0 * inf in PyTorch, too.
        found.append((output, layer.weight_hh_l0.grad, layer.bias_ih_l0.grad))
    for by_torch, by_scan in zip(*found, strict=True):
        torch.testing.assert_close(by_scan, by_torch, equal_nan=True, rtol=1e-4, atol=1e-5)
        assert by_scan.isfinite().all()
