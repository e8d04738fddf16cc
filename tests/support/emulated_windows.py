"""The operators of windows of time over the emulated kernels of csrc/cuda, with CUDA's layout.

Letters: T steps, B batch, I input, H state, K windows.
"""

import ctypes
import math

import torch

from bppsa_lightning import ops
from support.emulated_recurrent import BackwardRequest, Case, ForwardRequest, layer_fields
from support.emulation import (
    fields,
    mirror,
    numbers,
    plan_of,
    pointers,
    run,
    storage,
    storage_of,
    strides_of,
)

NAMES = ("x", "h0", "c0", "w_ih", "w_hh", "b_ih", "b_hh", "w_hr")
MetRequest = mirror(
    "MetRequest", storage, numbers("windows", "B", "N"), pointers("begun", "right", "level"),
    fields(ctypes.c_double, "size"), numbers("first"), pointers("met"),
)  # fmt: skip


class EmulatedWindows:
    """`recurrent_room`, `recurrent_windows` and its backward, as `bppsa_lightning.ops` has them.

    Attributes:
        launches: of the last call.
    """

    def __init__(self, library, **device):
        self.library, self.device = library, {"processors": 4} | device
        self.launches = []

    def patch(self, monkeypatch):
        for name in ("recurrent_room", "recurrent_windows", "recurrent_windows_backward"):
            monkeypatch.setattr(ops, name, getattr(self, name))

    def recurrent_room(self, cell, operands, saved):
        _, sizes = self._layer(cell, operands, int(saved))
        return tuple(operands.x.new_full(sizes[n], math.nan) for n in ("output", "kept"))

    def recurrent_windows(self, cell, operands, output, kept, cut, levels, sizes):
        head, K, span, warm = cut
        B, begun = operands.x.shape[1], [s for s in (operands.h0, operands.c0) if s is not None]
        operands = operands._replace(h0=begun[0][:B], c0=begun[1][:B] if len(begun) > 1 else None)
        given, _ = self._layer(cell, operands, 0)
        if warm:
            begun = [s.new_full((K * B, s.shape[1]), math.nan) for s in begun]
        last = [torch.full_like(s, math.nan) for s in begun]
        given |= self._windows(operands.x, cut, begun)
        given |= {"output": output.data_ptr(), "kept": _at(kept), "kept_width": kept.shape[2]}
        request = ForwardRequest(**given, c_n=last[-1].data_ptr() if len(last) > 1 else None)
        self.launches = self._run("emulate_forward", request, last[0].data_ptr())
        met = operands.x.new_full((K - 1,), 7, dtype=torch.int32)
        parts = zip(begun, last, levels, sizes, strict=True)
        for i, (is_, was, level, size) in enumerate(parts):
            self._met(is_, was, K, B, i == 0, met, size, level.data_ptr())
        return begun, last, met

    def recurrent_windows_backward(
        self, cell, operands, output, kept, grad, given_last, grad_x, wanted, cut, roundings
    ):
        _, K, _, back = cut
        B, given = operands.x.shape[1], self._layer(cell, operands, 0)[0]
        entered, true = list(given_last), list(given_last)
        if back:
            entered = [s.new_full((K * B, s.shape[1]), math.nan) for s in entered]
        else:
            true = [s[-B:] for s in entered]
        left = [torch.full_like(s, math.nan) for s in entered]
        given |= self._windows(operands.x, cut, entered)
        given |= {"output": output.data_ptr(), "kept": _at(kept), "kept_width": kept.shape[2]}
        if grad is not None:
            given |= {"grad": grad.data_ptr(), "grad_stride": tuple(strides_of(grad, 2))}
        if grad_x is not None:
            given |= {"grad_x": grad_x.data_ptr(), "grad_x_stride": tuple(strides_of(grad_x, 2))}
        found = [
            torch.full_like(w, math.nan) if want else None
            for w, want in zip(operands[3:], wanted, strict=True)
        ]
        given |= {
            f"grad_{n}": g.data_ptr()
            for n, g in zip(NAMES[3:], found, strict=True)
            if g is not None
        }
        for name, into, enters in zip(("h", "c"), left, true, strict=False):
            given |= {f"grad_{name}_n": enters.data_ptr(), f"grad_{name}0": into.data_ptr()}
        self.launches = self._run("emulate_backward", BackwardRequest(**given), plan_of("linear"))
        met = operands.x.new_full((K - 1,), 7, dtype=torch.int32)
        for i, (is_, was) in enumerate(zip(entered, left, strict=True)):
            self._met(is_, was, K, B, i == 0, met, roundings)
        return entered, left, found, met

    def _layer(self, cell, operands, keep):
        named = {n: t for n, t in zip(NAMES, operands, strict=True) if t is not None}
        return layer_fields(Case(cell, False, named, {}), named, self.library, keep)

    def _windows(self, x, cut, begun):
        head, K, span, warm = cut
        assert head + K * span == x.shape[0] and 0 <= warm <= span
        h, c = (*begun, None)[:2]
        return {
            "windows": K, "span": span, "warm": warm, "begun_h": h.data_ptr(),
            "begun_c": None if c is None else c.data_ptr(),
        }  # fmt: skip

    def _met(self, begun, right, K, B, first, met, size, level=None):
        request = MetRequest(
            storage_of(begun), K, B, begun.shape[1], begun.data_ptr(), right.data_ptr(), level,
            size, first, met.data_ptr(),
        )  # fmt: skip
        self.launches = self.launches + self._run("emulate_met", request)

    def _run(self, name, *arguments):
        return run(getattr(self.library, name), *arguments, **self.device).launches


def _at(t):
    return t.data_ptr() if t.numel() else None
