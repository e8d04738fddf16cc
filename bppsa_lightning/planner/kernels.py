"""Names of the recurrent CUDA kernels: which of them a call runs, and so must be known to be right.

A name is what csrc/cuda/recurrent compiles apart, or runs in a way of its own:

    <cell>.<dtype>.<units>.<part>    "gru.float32.20.chunked"
    <cell>.<dtype>.<option>          "lstm.float64.projection"

dtype is that of the arithmetic: 16-bit layers are computed in float32. units is the most that the
compiled size serves (csrc/cuda/recurrent/shape.cuh). Parts: "forward", and "forward_one_input" for
I = 1; the backward's "linear", "chunked" and "blelloch". Options: "reverse"; "gates_again",
computed in the backward, which no call needs (`choose.saved`); "projection"; "lengths" (samples of
different lengths).

I input, H state, P projected.
"""

import torch

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner.plan import Plan
from bppsa_lightning.planner.request import Request

# Of csrc/cuda/recurrent: the largest H whose chunks are composed; the largest H of which no number
# is read again in each step, and that of more gates than one where blocks cannot share a sample, in
# clusters; the largest H of all.
MOST_COMPOSED = 32
MOST_RESIDENT, MOST_RESIDENT_ALONE = 256, 128
MOST_UNITS = 4096
_SIZES = {"float32": (8, 20, 32, 64, 128, 256, 512, MOST_UNITS), "float64": (32, 512, MOST_UNITS)}
DTYPES = tuple(_SIZES)
BACKWARD = ("linear", "chunked", "blelloch")
OPTIONS = ("reverse", "gates_again", "projection", "lengths")


def sizes(cell: str, dtype: str, clusters: bool) -> tuple[int, ...]:
    """The compiled sizes that serve a cell, rising; `clusters`: whether blocks share samples."""
    alone = CELLS[cell].gates > 1 and not clusters
    return tuple(n for n in _SIZES[dtype] if n != MOST_RESIDENT or not alone)


def arithmetic(dtype: torch.dtype) -> str:
    """The dtype that a layer of such tensors is computed in."""
    return "float64" if dtype == torch.float64 else "float32"


def sized(cell: str, dtype: str, H: int, clusters: bool, part: str) -> str:
    """The name of the kernel that does a part of a layer with H units."""
    units = next((n for n in sizes(cell, dtype, clusters) if n >= H), MOST_UNITS)
    return f"{cell}.{dtype}.{units}.{part}"


def option(cell: str, dtype: str, name: str) -> str:
    """The name of what a layer with one of `OPTIONS` runs besides."""
    return f"{cell}.{dtype}.{name}"


def backward(cell: str, dtype: str, T: int, H: int, clusters: bool, plan: Plan) -> str:
    """The name of the kernels that compute a plan's backward."""
    algorithm = plan.algorithm
    if algorithm == "chunked" and not (H <= MOST_COMPOSED and 2 <= plan.chunk < T):
        algorithm = "linear"  # which is what runs there
    return sized(cell, dtype, H, clusters, algorithm)


def forward(request: Request, clusters: bool) -> set[str]:
    """The names of all that a requested module runs beside its plan's backward."""
    cell, dtype, H = request.cell, arithmetic(request.dtype), request.H
    lengths = request.total_steps is not None
    parts = {"forward_one_input" if request.I == 1 and not lengths else "forward"}
    parts |= {"forward"} if request.layers > 1 else set()
    asked = {"reverse": request.directions > 1, "projection": request.P > 0, "lengths": lengths}
    names = {option(cell, dtype, name) for name, wanted in asked.items() if wanted}
    return names | {sized(cell, dtype, H, clusters, part) for part in parts}


def of_call(request: Request, clusters: bool, plan: Plan) -> set[str]:
    """The names of all kernels that a requested module needs under a plan."""
    cell, dtype = request.cell, arithmetic(request.dtype)
    return forward(request, clusters) | {
        backward(cell, dtype, request.T, request.H, clusters, plan)
    }
