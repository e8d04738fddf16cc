"""The recurrent layers of csrc/cuda, run thread by thread on the host (see csrc/test_emulation.py).

Letters: T steps, B batch, I input, H state.
"""

import ctypes
import math
from typing import NamedTuple

import torch

from support.emulation import (
    fields,
    first_step,
    mirror,
    numbers,
    plan_of,
    pointers,
    run,
    storage,
    storage_of,
    strides_of,
)
from support.recurrent_layers import GATES, TWO_STATES

CELLS = list(GATES)

# The structs of csrc/requests/recurrent.h; the cells are the rows of csrc/cells/list.h.
LAYER = [
    *storage, *fields(ctypes.c_int, "cell"), *numbers("T", "B", "I", "H", "P"), *pointers("x"),
    ("x_stride", ctypes.c_int64 * 2), *pointers("h0", "c0", "w_ih", "w_hh", "b_ih", "b_hh", "w_hr"),
    ("output_stride", ctypes.c_int64 * 2), *numbers("kept_width"),
    ("kept_stride", ctypes.c_int64 * 2), *numbers("windows", "span", "warm"),
    *pointers("begun_h", "begun_c", "lengths"), *numbers("groups"), *pointers("output", "kept"),
]  # fmt: skip
ForwardRequest = mirror("RecurrentForwardRequest", LAYER, pointers("c_n"))
BackwardRequest = mirror(
    "RecurrentBackwardRequest", LAYER, pointers("grad"), [("grad_stride", ctypes.c_int64 * 2)],
    pointers("grad_h_n", "grad_c_n", "grad_x"), [("grad_x_stride", ctypes.c_int64 * 2)],
    pointers("grad_h0", "grad_c0", "grad_w_ih", "grad_w_hh", "grad_b_ih", "grad_b_hh", "grad_w_hr"),
)  # fmt: skip
NOTHING, LEAST, ALL = range(3)  # Keep


class Case(NamedTuple):
    """A layer and what flows in at both of its ends; tensors in float64."""

    cell: str
    reverse: bool
    tensors: dict  # x, h0, c0, w_ih, w_hh, b_ih, b_hh; absent ones are missing
    incoming: dict  # output, h_n, c_n: their gradients; absent ones are missing


class Result(NamedTuple):
    found: dict
    launches: list
    untrusted: int
    barriers: int  # of the backward


def layer_fields(case, t, library, keep):
    """What a forward and a backward request say of a layer, and the sizes of its results."""
    (T, B, I), (rows, P) = t["x"].shape, t["w_hh"].shape
    H, back = rows // GATES[case.cell], case.reverse
    given = {
        name: value.data_ptr() for name, value in t.items() if name != "x"
    } | {
        "storage": storage_of(t["x"]), "cell": CELLS.index(case.cell),
        "T": T, "B": B, "I": I, "H": H, "P": P,
        "x": first_step(t["x"], back), "x_stride": tuple(strides_of(t["x"], 2, back)),
        "output_stride": ((-1 if back else 1) * B * P, P),
    }  # fmt: skip
    width = library.emulate_kept_width(ctypes.byref(ForwardRequest(**given)), keep)
    two = case.cell in TWO_STATES
    sizes = {"output": (T, B, P), "h_n": (B, P), "c_n": (B, H) if two else (0,)}
    return given, sizes | {"kept": (T, B, width)}


def emulate(
    library,
    case,
    dtype=torch.float32,
    algorithm="linear",
    chunk=1,
    levels=0,
    batch_first=False,
    keep=ALL,
    **device,
):
    device = {"processors": 4} | device
    t = {name: value.to(dtype) for name, value in case.tensors.items()}
    if batch_first:
        t["x"] = t["x"].transpose(0, 1).contiguous().transpose(0, 1)
    given, sizes = layer_fields(case, t, library, keep)
    sizes |= {f"grad_{name}": value.shape for name, value in t.items()}
    sizes["grad_h0"] = sizes["h_n"]
    sizes["grad_c0"] = sizes["c_n"]
    out = {name: torch.full(size, math.nan, dtype=dtype) for name, size in sizes.items()}
    given |= {
        "output": first_step(out["output"], case.reverse),
        "kept": out["kept"].data_ptr() if out["kept"].numel() else None,
        "kept_width": out["kept"].shape[2],
    }
    forward = ForwardRequest(**given, c_n=out["c_n"].data_ptr())
    first = run(library.emulate_forward, forward, out["h_n"].data_ptr(), **device)

    grad = case.incoming.get("output")
    if grad is not None:
        shared = grad.stride()[:2] == (0, 0)
        grad = grad[:1, :1].to(dtype).expand(grad.shape) if shared else grad.to(dtype)
        given |= {"grad": first_step(grad, case.reverse)}
        given |= {"grad_stride": tuple(strides_of(grad, 2, case.reverse))}
    incoming = {name: g.to(dtype) for name, g in case.incoming.items() if name != "output"}
    given |= {f"grad_{name}": g.data_ptr() for name, g in incoming.items()}
    given |= {n: value.data_ptr() for n, value in out.items() if n.startswith("grad_")}
    given |= {"grad_x": first_step(out["grad_x"], case.reverse)}
    given |= {"grad_x_stride": tuple(strides_of(out["grad_x"], 2, case.reverse))}
    plan = plan_of(algorithm, chunk, levels)
    second = run(library.emulate_backward, BackwardRequest(**given), plan, **device)
    return Result(out, first.launches + second.launches, second.untrusted, second.barriers)
