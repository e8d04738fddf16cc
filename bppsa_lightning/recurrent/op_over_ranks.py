"""`bl.ops.rnn`, `gru` and `lstm` with a `group`: one call over the spans of several ranks.

Letters as in ops/recurrent.py.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from bppsa_lightning._cells import CELLS
from bppsa_lightning.ops import Operands
from bppsa_lightning.ops import recurrent as operators
from bppsa_lightning.recurrent.config import OneLayer
from bppsa_lightning.recurrent.divided import DividedLayer


def over_ranks(
    cell: str, operands: Operands, reverse: bool, algorithm: str, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """output (T, B, P) of this rank's span, h_n, and c_n (empty unless an LSTM's).

    Nothing is learned from call to call: "auto" takes ranks for ones that do not begin at once,
    and "speculative" looks in every call.
    """
    x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr = operands
    record, (GH, P) = CELLS[cell], w_hh.shape
    if w_ih is None:  # a divided layer's weights are all there
        w_ih = torch.eye(GH, dtype=x.dtype, device=x.device)
    H = GH // record.gates
    biased = b_ih is not None or b_hh is not None
    weights = [w_ih, w_hh]
    if biased:
        weights += [w_ih.new_zeros(GH) if b is None else b for b in (b_ih, b_hh)]
    if w_hr is not None:
        weights.append(w_hr)
    sizes = (P, H) if record.has_c else (P,)
    given = (h0, c0)[: len(sizes)]
    states = [
        x.new_zeros(x.shape[1], n) if s is None else s for s, n in zip(given, sizes, strict=True)
    ]
    config = OneLayer(record, x.shape[2], H, P, biased, w_hr is not None, sizes)
    layer = DividedLayer(config, record.label, group, sharded=True)
    if algorithm == "auto":
        layer.looks = False
    output, *last = layer.span_scan(x, states, weights, reverse, algorithm)
    h_n, c_n = (*last, x.new_empty(0))[:2]
    return output, h_n, c_n


# The operators are too far below to know how they are divided.
operators.over_ranks = over_ranks
