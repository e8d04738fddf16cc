"""Samples that are mixed, or told apart, by whole numbers that are the same at first."""

import pytest
import torch
from support.windows import loop
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.steps import scans_of

T, B, H = 400, 2, 4
PHASES = (torch.arange(T) // 150).unsqueeze(1).expand(T, B)
ONE_DONE, ONE_LEFT = torch.zeros(T, B, dtype=torch.bool), torch.ones(T, B, dtype=torch.bool)
ONE_DONE[200, 1], ONE_LEFT[200, 1] = True, False
TABLE = torch.arange(3.0)


def ran(step, numbers, algorithm="speculative"):
    """Of windows and of the loop; and what became of the scan."""
    torch.manual_seed(0)
    linear, init, xs = nn.Linear(H, H), torch.zeros(B, H), (torch.randn(T, B, H), numbers)

    def of_both(h, both):
        x, n = both
        h = torch.tanh(0.5 * linear(h) + step(x, n))
        return h, h

    found = bl.scan(of_both, init, xs, algorithm=algorithm)[1]
    return found, loop(of_both, init, xs)[1], scans_of(linear.parameters())[-1]


def written(x, at):
    x = x.clone()
    x[:, at] = 0
    return x


MIXING = {
    "any": (lambda x, n: torch.where(n.any(), -x, x), ONE_DONE),
    "all": (lambda x, n: torch.where(n.all(), -x, x), ONE_LEFT),
    "any of all but": (lambda x, n: torch.where((n > 0).all(), -x, x), PHASES),
    "mean of some": (lambda x, n: x * n.sum() / len(n), ONE_LEFT),
    "largest": (lambda x, n: x * (1 + n.max()), PHASES),
    "the first one's": (lambda x, n: x + TABLE.index_select(0, n[:1]), PHASES),
    "a place of the first one's": (lambda x, n: x + TABLE[n[0]], PHASES),
    "a place to write to": (lambda x, n: written(x, n[0]), PHASES),
    "the last one's": (lambda x, n: x + TABLE.index_select(0, n[-1:]), PHASES),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("algorithm", ["auto", "speculative", "chunked"])
def test_they_are_walked_as_the_loop(name, algorithm):
    found, true, known = ran(*MIXING[name], algorithm)
    assert torch.equal(found, true)
    assert "mixes samples" in known.why


@pytest.mark.parametrize("numbers", [PHASES, ONE_DONE, ONE_LEFT, 2 + 0 * PHASES])
def test_numbers_of_each_sample_stay_in_windows(numbers):
    """Only such as there are are tried: others would index nothing."""

    def step(x, n):
        return x + TABLE[n.long()].unsqueeze(-1)

    found, true, known = ran(step, numbers)
    assert known.cut is not None, known.why
    torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-5)


NUMBERS = {
    "alpha": lambda x, n: torch.add(x, x, alpha=n[0]),
    "end of a slice": lambda x, n: nn.functional.pad(x[:, n[0] :], (0, 3))[:, :H],
    "of a fill": lambda x, n: x + torch.full((H,), n[0]),
    "of a range": lambda x, n: x * torch.arange(2 + n[0]).sum(),
    "of a size": lambda x, n: x * torch.zeros(1 + n[0]).numel(),
    "complex": lambda x, n: x * complex(n[0]).real,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_made_within_functions_are_seen(name):
    found, true, known = ran(NUMBERS[name], PHASES)
    assert torch.equal(found, true)
    assert "reads numbers of its arguments" in known.why
