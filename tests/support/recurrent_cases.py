"""Sizes, marks and layouts that the tests of bl.ops.rnn, gru and lstm share."""

import pytest
import torch

from support.recurrent_layers import (
    ALGORITHMS,
    CELLS,
)

EXACT = 1e-10
ULP = torch.finfo(torch.float32).eps
SIZES = {  # T, B, I, H
    "some": (7, 5, 3, 4),
    "ones": (1, 1, 1, 1),
    "one step": (1, 3, 2, 3),
    "one sample": (13, 1, 2, 5),
    "no sample": (4, 0, 2, 3),
    "one unit": (9, 3, 2, 1),
    "above a register": (12, 5, 7, 33),
    "many samples": (3, 70, 3, 8),
    "wide": (5, 2, 2, 130),
    "long": (300, 2, 1, 6),
}
each_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
each_keep = pytest.mark.parametrize("keep", [1, 2])


def spread(t):
    """The same numbers, the last dimension's apart."""
    return t.repeat_interleave(2, dim=-1)[..., ::2]


def turned(t):
    """The same numbers, with the first two dimensions' strides exchanged."""
    return t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else spread(t)
