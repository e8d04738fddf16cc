"""bl.ops.rnn, gru and lstm in float32: no more than twice PyTorch's error; activations."""

import functools

import pytest
import torch
from support.recurrent_cases import ULP, each_algorithm
from support.recurrent_layers import (
    CELLS,
    cotangents,
    draw,
    ours,
    results,
    stock,
    widened,
)

import bppsa_lightning as bl

NORMS = (torch.inf, 2)
# Medians of 7 draws of either error came to 2.2 by luck on one machine, of 14 to 1.6 at most.
SEEDS = range(15)


def errors(found, truth):
    """Of each result and gradient, by each of NORMS; (norms, results)."""

    def relative(name, norm):
        error, size = found[name] - truth[name], truth[name]
        # A unit in the last place is luck: either may happen to be exact.
        return torch.linalg.vector_norm(error, norm) / torch.linalg.vector_norm(size, norm) + ULP

    return torch.stack([torch.stack([relative(name, norm) for name in truth]) for norm in NORMS])


@functools.cache
def in_pytorch(name, gain, seed):
    """Operands, incoming gradients, results in float64, and PyTorch's errors in float32."""
    cell = CELLS[name]
    tensors = draw(cell, (64, 8, 3, 20), torch.float32, gain, seed=seed)
    incoming = cotangents(cell, tensors)
    truth = results(stock, cell, widened(tensors), widened(incoming))
    return tensors, incoming, truth, errors(results(stock, cell, tensors, incoming), truth)


@pytest.mark.parametrize("cell", CELLS)
@each_algorithm
@pytest.mark.parametrize("gain", [0.1, 0.5, 1.0])
def test_float32_error_is_at_most_twice_pytorchs(cell, algorithm, gain):
    """Median over seeds for each result: one draw of either error is rounding luck."""
    ratios = []
    for seed in SEEDS:
        tensors, incoming, truth, of_pytorch = in_pytorch(cell, gain, seed)
        found = results(ours, CELLS[cell], tensors, incoming, algorithm=algorithm)
        ratios.append(errors(found, truth) / of_pytorch)
    median = torch.stack(ratios).median(0).values
    assert (median <= 2).all(), median


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_activations_are_right_to_the_last_places(dtype):
    """All magnitudes and signs through the only door: one step whose state is the activation."""
    magnitude = torch.logspace(-12, 3, 20_001, dtype=torch.float64)
    x = torch.cat([magnitude, -magnitude]).to(dtype).view(1, -1, 1)
    for H in (1, 19):  # a scalar's code, and a register's with its rest
        wide, zero = torch.ones(H, 1, dtype=dtype), torch.zeros(H, H, dtype=dtype)
        states = x.new_ones(x.shape[1], H)
        found = {
            torch.tanh: bl.ops.rnn(x, None, wide, zero)[1],
            # The forget gate alone sees x: c_1 = σ(x) c_0.
            torch.sigmoid: bl.ops.lstm(
                *(x, None, states, torch.cat([0 * wide, wide, 0 * wide, 0 * wide])),
                torch.cat([zero] * 4),
            )[2],
        }
        for function, values in found.items():
            truth = function(x.double()).view(-1, 1).expand(-1, H)
            floor = torch.finfo(dtype).tiny  # smaller numbers count as zero
            step = torch.finfo(dtype).eps * truth.abs() + floor
            ulps = ((values.double() - truth).abs() / step).max()
            assert ulps <= 3, (function, H, ulps)
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e30], dtype=dtype)
        values = bl.ops.rnn(special.view(1, -1, 1), None, wide, zero)[1]
        for column in values.t().tolist():
            assert column[:4] == [0.0, 0.0, 1.0, -1.0] and column[5] == 1.0
            assert column[4] != column[4]
