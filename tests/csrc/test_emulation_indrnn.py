"""The CUDA kernels of bl.ops.indrnn, run thread by thread on the host (see test_emulation.py)."""

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

from bppsa_lightning.ops import indrnn

pytestmark = needs_gxx

# The structs of csrc/requests/indrnn.h.
LAYER = [*storage, ("relu", ctypes.c_bool), *numbers("T", "B", "H"), *pointers("u", "h0"),
         *numbers("step")]  # fmt: skip
ForwardRequest = mirror(
    "IndRnnForwardRequest", LAYER, pointers("x"), [("x_stride", ctypes.c_int64 * 2)],
    pointers("output", "h_n"),
)  # fmt: skip
BackwardRequest = mirror(
    "IndRnnBackwardRequest", LAYER, pointers("output", "grad"),
    [("grad_stride", ctypes.c_int64 * 2)], pointers("grad_hn", "grad_x", "grad_h0", "grad_u"),
)  # fmt: skip


@pytest.fixture(scope="module")
def library():
    return compiled("indrnn")


def emulate(library, x, h0, u, relu, reverse, grad, grad_hn, **device):
    """output, h_n and the gradients of x, h0 and u."""
    T, B, H = x.shape
    out = [torch.full(s, math.nan, dtype=x.dtype) for s in (x.shape, (B, H), x.shape, (B, H), (H,))]
    layer = {
        "storage": storage_of(x), "relu": relu, "T": T, "B": B, "H": H, "u": u.data_ptr(),
        "h0": None if h0 is None else h0.data_ptr(), "step": (-1 if reverse else 1) * B * H,
        "output": first_step(out[0], reverse),
    }  # fmt: skip
    request = ForwardRequest(
        **layer, x=first_step(x, reverse), x_stride=tuple(strides_of(x, 2, reverse)),
        h_n=out[1].data_ptr(),
    )  # fmt: skip
    forward = run(library.emulate_forward, request, **device)
    if grad is not None:
        layer |= {"grad": first_step(grad, reverse)}
        layer |= {"grad_stride": tuple(strides_of(grad, 2, reverse))}
    request = BackwardRequest(
        **layer, grad_hn=None if grad_hn is None else grad_hn.data_ptr(),
        grad_x=first_step(out[2], reverse), grad_h0=out[3].data_ptr(), grad_u=out[4].data_ptr(),
    )  # fmt: skip
    backward = run(library.emulate_backward, request, **device)
    return out, forward.launches + backward.launches


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("T, B, H", [(1, 1, 1), (8, 2, 3), (21, 3, 40), (5, 0, 3)])
def test_emulated_layer_equals_the_cpu_kernel(library, T, B, H, reverse, relu, dtype):
    generator = torch.Generator().manual_seed(T)
    x, grad, h0, grad_hn, u = (
        torch.randn(s, generator=generator).to(dtype)
        for s in ((T, B, H), (T, B, H), (B, H), (B, H), (H,))
    )
    u = u.tanh()
    x = x.transpose(0, 1).contiguous().transpose(0, 1)
    for state, direct, last in ((h0, grad, grad_hn), (None, grad, None), (h0, None, grad_hn)):
        found, launches = emulate(library, x, state, u, relu, reverse, direct, last)
        leaves = [t.clone().requires_grad_() for t in (x, h0, u)]
        leaves[1] = h0.mul(state is not None).requires_grad_()
        output, h_n = indrnn(
            *leaves, "relu" if relu else "tanh", algorithm="linear", reverse=reverse
        )
        given = [(output, direct), (h_n, last)]
        pairs = [(o, g) for o, g in given if g is not None]
        wanted = torch.autograd.grad([o for o, _ in pairs], leaves, [g for _, g in pairs])
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        for ours, theirs in zip(found, (output, h_n, *wanted), strict=True):
            assert not ours.numel() or relative_error(ours, theirs.detach()) < tolerance
        if B:
            assert launches == ["independent forward", "independent backward", "add samples"]


def test_a_small_grid_computes_every_chain(library):
    x, u = torch.randn(9, 4, 50), torch.rand(50)
    whole, _ = emulate(library, x, None, u, False, False, x, None)
    part, _ = emulate(library, x, None, u, False, False, x, None, grid_limit=2, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(whole, part, strict=True))
