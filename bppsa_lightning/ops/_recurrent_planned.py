"""The backward of a recurrent layer in a graph of torch.compile: planned whenever it runs.

While a graph is traced, steps and samples may be symbols. A plan made of them then would be one for
these sizes, and the graph too: every other size would be compiled again. So the graph holds an
operator that is opaque to torch.compile, and asks the planner of the sizes that it is called with.
"""

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import planner
from bppsa_lightning._cells import CELLS
from bppsa_lightning.ops.log import record_scan

_TENSORS = (
    "Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor output, Tensor kept, "
    "Tensor x, Tensor? h0, Tensor? c0, Tensor? w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, "
    "Tensor? w_hr"
)

_library = torch.library.Library("bppsa", "FRAGMENT")  # must live as long as what it registered
_library.define(
    f"planned_recurrent_backward(str cell, {_TENSORS}, bool reverse, str algorithm, int wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _planned(cell: str, *arguments: Any) -> tuple[Tensor, ...]:
    *tensors, reverse, algorithm, wanted = arguments
    x, _, _, _, w_hh, *_, w_hr = tensors[5:]
    (T, B, I), (GH, P) = x.shape, w_hh.shape
    H, projected = GH // CELLS[cell].gates, 0 if w_hr is None else P
    request = planner.Request(cell, T, B, H, x.device, algorithm, None, I, projected)
    plan = planner.plan(request)
    record_scan(CELLS[cell].label, (T, B, H if x.is_cuda else P), plan)
    found: tuple[Tensor, ...] = torch.ops.bppsa.recurrent_backward.default(
        cell, *tensors, reverse, plan.algorithm, plan.chunk, plan.levels, wanted
    )
    return found


_library.impl("planned_recurrent_backward", _planned, "CompositeExplicitAutograd")
planned_backward = torch.ops.bppsa.planned_recurrent_backward.default
