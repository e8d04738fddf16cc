"""The CUDA kernels of bl.ops.regularised, thread by thread on the host (see test_emulation.py)."""

import ctypes
import math

import pytest
import torch
from support.cases import relative_error
from support.emulation import (
    compiled,
    first_step,
    mirror,
    needs_gxx,
    numbers,
    pointers,
    run,
    storage,
    storage_of,
    strides_of,
)

from bppsa_lightning._cells import CELLS
from bppsa_lightning.ops import Regularised, regularised
from bppsa_lightning.ops.regularised import NORMALISED, REGULARISED, _saved_width

pytestmark = needs_gxx

# The structs of csrc/requests/regularised.h.
LAYER = [*storage, ("cell", ctypes.c_int), ("diagonal", ctypes.c_bool), *numbers("T", "B", "H"),
         *pointers("h0", "c0", "w_hh", "b_hh", "norm_hh", "norm_c", "b_c", "enters", "kept_h",
                   "kept_c"),
         *numbers("kept_step"), ("zoneout", ctypes.c_double),
         *numbers("step", "saved_width"), *pointers("x"), ("x_stride", ctypes.c_int64 * 2),
         *numbers("I"), *pointers("w_ih", "b_ih", "norm_ih")]  # fmt: skip
ForwardRequest = mirror(
    "RegularisedForwardRequest", LAYER, pointers("output", "saved", "h_n", "c_n")
)  # fmt: skip
BackwardRequest = mirror(
    "RegularisedBackwardRequest", LAYER, pointers("output", "saved", "grad"),
    [("grad_stride", ctypes.c_int64 * 2)], pointers("grad_hn", "grad_cn", "grad_x"),
    numbers("grad_x_step"),
    pointers("grad_h0", "grad_c0", "grad_w_hh", "grad_b_hh", "grad_norm_hh", "grad_norm_c",
             "grad_b_c", "grad_w_ih", "grad_b_ih", "grad_norm_ih"),
)  # fmt: skip
ENTERS = Regularised._fields.index("enters")  # those before have gradients
CELL = {name: i for i, name in enumerate(CELLS)}  # the rows of csrc/cells/list.h


@pytest.fixture(scope="module")
def library():
    return compiled("regularised")


def address(t):
    return None if t is None else t.data_ptr()


def emulate(library, cell, o, zoneout, reverse, incoming, saves=True, **device):
    """Results, and gradients of the operands that there are."""
    (T, B, GH), H, x = o.x.shape, o.w_hh.shape[-1], o.x
    has_c, normalised = CELLS[cell].has_c, o.norm_hh is not None

    def room(*shape):
        return torch.full(shape, math.nan, dtype=x.dtype)

    blends = zoneout != 0 or o.kept_h is not None
    width, sign = _saved_width(cell, H, normalised, blends, False), -1 if reverse else 1
    output, h_n, c_n, saved = room(T, B, H), room(B, H), room(B, H), room(T, B, width)
    named = ("h0", "c0", "w_hh", "b_hh", "norm_hh", "norm_c", "b_c", "enters")
    layer = {
        "storage": storage_of(x), "cell": CELL[cell], "diagonal": o.w_hh.dim() == 1,
        "T": T, "B": B, "H": H,
        **{name: address(getattr(o, name)) for name in named},
        "kept_h": None if o.kept_h is None else address(o.kept_h[-1 if reverse else 0]),
        "kept_c": None if o.kept_c is None else address(o.kept_c[-1 if reverse else 0]),
        "kept_step": sign * B * H, "zoneout": zoneout, "step": sign * B * H,
        "saved_width": width, "output": first_step(output, reverse),
        "saved": address(saved) if saves else None,
    }  # fmt: skip
    forward = ForwardRequest(
        **layer, x=first_step(x, reverse), x_stride=tuple(strides_of(x, 2, reverse)),
        h_n=address(h_n), c_n=address(c_n),
    )  # fmt: skip
    run(library.emulate_forward, forward, **device)
    results = [output, h_n, c_n][: 2 + has_c]
    if not saves:
        return results
    grad_x = room(T, B, GH)
    found = [None if getattr(o, n) is None else torch.full_like(getattr(o, n), math.nan)
             for n in named[:-1]]  # fmt: skip
    backward = BackwardRequest(
        **layer, grad=first_step(incoming[0], reverse),
        grad_stride=tuple(strides_of(incoming[0], 2, reverse)), grad_hn=address(incoming[1]),
        grad_cn=address(incoming[2]) if has_c else None, grad_x=first_step(grad_x, reverse),
        grad_x_step=sign * B * GH,
        **{f"grad_{n}": address(t) for n, t in zip(named[:-1], found, strict=True)},
    )  # fmt: skip
    run(library.emulate_backward, backward, **device)
    return [*results, grad_x, *(t for t in found if t is not None)]


def on_the_cpu(cell, o, zoneout, reverse, incoming):
    leaves = [t.clone().requires_grad_() if t is not None and i < ENTERS else t
              for i, t in enumerate(o)]  # fmt: skip
    results = regularised(cell, Regularised(*leaves), zoneout, reverse)
    given = [t for t in leaves[:ENTERS] if t is not None]
    return [*results, *torch.autograd.grad(results, given, incoming[: len(results)])]


def draw(cell, form, T, B, H, noise, dtype):
    GH, has_c = CELLS[cell].gates * H, CELLS[cell].has_c
    normal = torch.randn
    o = Regularised(
        normal(B, T, GH).transpose(0, 1), normal(B, H), normal(B, H) if has_c else None,
        normal(GH, H) / H**0.5, normal(GH),
    )  # fmt: skip
    if form == "independent":
        o = o._replace(w_hh=normal(H))
    if form == "normalised":
        o = o._replace(norm_hh=1 + normal(GH) / 4)
        if has_c:
            o = o._replace(norm_c=1 + normal(H) / 4, b_c=normal(H))
    o = Regularised(*(t if t is None else t.to(dtype) for t in o))
    if noise:
        masks = [torch.rand(T, B, H) < 0.3 for _ in range(1 + has_c)]
        o = o._replace(enters=(torch.rand(B, H) < 0.7).to(dtype) * 1.5, kept_h=masks[0],
                       kept_c=masks[1] if has_c else None)  # fmt: skip
    return o


@pytest.mark.parametrize(
    ("cell", "form"),
    [(c, "plain") for c in REGULARISED]
    + [(c, "normalised") for c in NORMALISED]
    + [("rnn_tanh", "independent"), ("rnn_relu", "independent")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("T, B, H, noise", [(1, 1, 3, False), (7, 2, 5, True), (4, 3, 40, True),
                                            (3, 1, 300, False)])  # fmt: skip
def test_emulated_layer_equals_the_cpu_kernel(library, cell, form, T, B, H, noise, dtype):
    torch.manual_seed(T)
    o = draw(cell, form, T, B, H, noise, dtype)
    incoming = [torch.randn(s).to(dtype) for s in ((T, B, H), (B, H), (B, H))]
    for reverse, zoneout in ((False, 0.0), (True, 0.2)):
        wanted = on_the_cpu(cell, o, zoneout, reverse, incoming)
        found = emulate(library, cell, o, zoneout, reverse, incoming, seed=T)
        tolerance = 2e-4 if dtype == torch.float32 else 1e-11
        for ours, true in zip(found, wanted, strict=True):
            assert relative_error(ours, true) < tolerance


def test_nothing_is_saved_where_no_backward_follows(library):
    torch.manual_seed(0)
    o = draw("lstm", "normalised", 5, 2, 4, True, torch.float64)
    with torch.no_grad():
        wanted = regularised("lstm", o)
    found = emulate(library, "lstm", o, 0.0, False, None, saves=False)
    for ours, true in zip(found, wanted, strict=True):
        assert relative_error(ours, true) < 1e-12


def test_results_do_not_depend_on_the_order_of_threads(library):
    torch.manual_seed(0)
    o = draw("gru", "normalised", 6, 2, 33, True, torch.float32)
    incoming = [torch.randn(s) for s in ((6, 2, 33), (2, 33), (2, 33))]
    first, second = (emulate(library, "gru", o, 0.1, False, incoming, seed=n) for n in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
