"""The paper's way for any step: its transposed Jacobians of all time steps at once, then a scan.

The forward is the loop, without a graph. Backward, all time steps are one batch: the step is called
once for the states that were walked, as many samples as there are (time step, sample); its
transposed Jacobians are that call's vector-Jacobian products with the rows of the identity; the
gradients of all states are `ops.reverse_scan`; and one more product gives those of inputs and
parameters. Exact whatever the recurrence remembers; worth it for small states.

T steps, B samples, S numbers of a sample's state.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import ops
from bppsa_lightning.steps.engine import StepEngine
from bppsa_lightning.windows.cut import Leaves

# The Jacobians that are held at a time; and the rows of a call, one for each sample in each time
# step: float32 products over 4,096 of like signs are wrong by up to 3e-6, those over 1,024 by 1e-6.
_MOST_BYTES, _MOST_ROWS = 64 << 20, 1024

# B * S * S.
_MOST_PRODUCTS = 8000


def scan_jacobians(
    engine: StepEngine, xs: Leaves, state: Leaves, algorithm: str
) -> tuple[list[Tensor], list[Tensor]]:
    """What ``engine(xs, state)`` returns; its backward is a scan by `algorithm`.

    Args:
        xs: (T, B, ...) each. state: (B, ...) each, floating-point of one dtype.
    """
    tensors = (*xs, *state, *engine.tensors)
    call = _Call(engine, len(xs), len(state), algorithm)
    outputs = _JacobianScan.apply(call, *tensors)
    return list(outputs[: call.ys]), list(outputs[call.ys :])


def unfit(state: Leaves) -> str | None:
    """Why states are none whose Jacobians could be scanned; None if they are."""
    if any(not s.is_floating_point() or s.dtype != state[0].dtype for s in state):
        return "the carry is not of one floating-point dtype, which a scan of Jacobians wants"
    if state[0].dtype not in (torch.float32, torch.float64):
        return f"a carry of {state[0].dtype}, of which there is no scan of Jacobians"
    if torch.is_autocast_enabled(state[0].device.type):
        return "autocast, under which a step is not differentiated again"
    return None


def pays(state: Leaves) -> bool:
    """Whether the products of a time step's Jacobians take less time than its loop's backward.

    On two cores of a Xeon a scan of a layer-norm LSTM or a GRU-D is 1.8 to 5.7 times as fast as the
    loop for B * S * S = 1,600 and 6,400, and far slower for 262,144.
    """
    B, S = state[0].shape[0], sum(s[0].numel() for s in state)
    return B * S * S <= _MOST_PRODUCTS


class _Call:
    """What of a call is no tensor; `ys`, how many outputs come before the states."""

    def __init__(self, engine: StepEngine, xs: int, states: int, algorithm: str) -> None:
        self.engine, self.xs, self.states, self.algorithm = engine, xs, states, algorithm
        self.ys = 0


class _JacobianScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        xs, state = tensors[: call.xs], tensors[call.xs : call.xs + call.states]
        results, last, before = call.engine.states_before(xs, state)
        ctx.call = call
        ctx.set_materialize_grads(False)
        # (Constants, so that one that is changed until then is an error, as in a loop's graph.)
        ctx.save_for_backward(*tensors, *before, *call.engine.constants)
        call.ys = len(results)
        last = [s.clone() for s in last]
        ctx.mark_non_differentiable(*call.engine.without_gradient(results, last))
        return (*results, *last)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        call, saved, wanted = ctx.call, ctx.saved_tensors, ctx.needs_input_grad[1:]
        tensors, states = saved[: len(wanted)], saved[len(wanted) :][: call.states]
        if torch.is_grad_enabled():  # second derivatives are those of the loop
            xs, state = tensors[: call.xs], tensors[call.xs : call.xs + call.states]
            own = tensors[call.xs + call.states :]
            found = call.engine.differentiable_gradients(xs, state, own, gradients, wanted)
            return (None, *found)
        with torch.enable_grad():
            return (None, *_Backward(call, tensors, states, wanted).run(gradients))


class _Backward:
    """The gradients of one call, some time steps at a time, from the last ones on."""

    def __init__(
        self, call: _Call, tensors: Leaves, states: Leaves, wanted: Sequence[bool]
    ) -> None:
        self.call, self.engine, self.states = call, call.engine, states
        self.xs = tensors[: call.xs]
        self.own = tensors[call.xs + call.states :]
        self.wants_xs = wanted[: call.xs]
        self.wants_state = wanted[call.xs : call.xs + call.states]
        self.wants_own = wanted[call.xs + call.states :]
        self.T, self.B = states[0].shape[:2]
        self.sizes = [s[0, 0].numel() for s in states]

    def run(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        grad_ys, grad_last = gradients[: self.call.ys], gradients[self.call.ys :]
        carry = self._flat(
            [
                torch.zeros_like(s[0]) if g is None else g
                for g, s in zip(grad_last, self.states, strict=True)
            ]
        )
        S = sum(self.sizes)
        bytes_a_row = max(1, S * S * carry.element_size())
        steps = max(1, min(_MOST_BYTES // bytes_a_row, _MOST_ROWS) // self.B)
        own: list[Tensor | None] = [None] * len(self.own)
        of_xs: list[list[Tensor | None]] = []
        for hi in range(self.T, 0, -steps):
            lo = max(0, hi - steps)
            u = [None if g is None else g[lo:hi] for g in grad_ys]
            carry, xs, more = self._steps(lo, hi, u, carry)
            of_xs.append(xs)
            own = [_sum(a, b) for a, b in zip(own, more, strict=True)]
        found: list[Tensor | None] = []
        for i, wanted in enumerate(self.wants_xs):
            parts = [part[i] for part in reversed(of_xs)]
            if not wanted or all(p is None for p in parts):
                found.append(None)
                continue
            whole = torch.zeros_like(self.xs[i])
            at = 0
            for part in parts:
                length = min(steps, self.T) if at else self.T - (len(parts) - 1) * steps
                if part is not None:
                    whole[at : at + length] = part
                at += length
            found.append(whole)
        pieces = carry.split(self.sizes, 1)
        for piece, s, wanted in zip(pieces, self.states, self.wants_state, strict=True):
            found.append(piece.reshape(s.shape[1:]) if wanted else None)
        return [*found, *own]

    def _steps(
        self, lo: int, hi: int, u: Sequence[Tensor | None], carry: Tensor
    ) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:
        """Of steps lo ... hi - 1: the gradient before them, those of xs, and of what is read."""
        n, B = hi - lo, self.B
        state = [s[lo:hi].flatten(0, 1).detach().requires_grad_() for s in self.states]
        xs = []
        for x, wanted in zip(self.xs, self.wants_xs, strict=True):
            rows = x[lo:hi].flatten(0, 1).detach()
            xs.append(rows.requires_grad_() if wanted else rows)
        # One call: (time step, sample) are its samples.
        ys, after = self.engine([x.unsqueeze(0) for x in xs], [s.clone() for s in state])
        ys = [y.squeeze(0) for y in ys]
        flat = self._flat(after)
        direct = self._direct(ys, u, state)
        jacobians = self._jacobians(flat, state).reshape(n, B, *[flat.shape[1]] * 2)
        entering = torch.cat([direct.reshape(n, B, -1), carry.unsqueeze(0)])
        g = ops.reverse_scan(jacobians, entering, algorithm=self.call.algorithm)
        outputs, given = [], []
        for y, part in zip([*ys, flat], [*u, g[1:]], strict=True):
            if part is not None and y.requires_grad:  # a state may be detached, and y not
                outputs.append(y)
                given.append(part.flatten(0, 1))
        inputs = [x for x in xs if x.requires_grad]
        inputs += [t for t, w in zip(self.own, self.wants_own, strict=True) if w]
        found: list[Tensor | None] = [None] * len(inputs)
        if inputs and outputs:
            found = list(torch.autograd.grad(outputs, inputs, given, allow_unused=True))
        unused = [t for t, g in zip(inputs, found, strict=True) if g is None]
        self.engine.check_walk([*ys, flat], unused)
        each = iter(found)
        of_xs = [next(each) if x.requires_grad else None for x in xs]
        of_xs = [
            None if g_x is None else g_x.reshape(x[lo:hi].shape)
            for g_x, x in zip(of_xs, self.xs, strict=True)
        ]
        return g[0], of_xs, [next(each) if w else None for w in self.wants_own]

    def _direct(self, ys: Leaves, u: Sequence[Tensor | None], state: Leaves) -> Tensor:
        """What reaches each state through the y of its own step, (n * B, S)."""
        outputs, given = [], []
        for y, part in zip(ys, u, strict=True):
            if part is not None and y.requires_grad:
                outputs.append(y)
                given.append(part.flatten(0, 1))
        zeros = [torch.zeros_like(s) for s in state]
        if not outputs:
            return self._flat(zeros)
        found = torch.autograd.grad(
            outputs, list(state), given, retain_graph=True, allow_unused=True
        )
        return self._flat([z if f is None else f for f, z in zip(found, zeros, strict=True)])

    def _jacobians(self, flat: Tensor, state: Leaves) -> Tensor:
        """(n * B, S, S): entry (i, j) of each is d after[j] / d before[i]."""
        if not flat.requires_grad:  # a state that depends on nothing
            return flat.new_zeros(*flat.shape, flat.shape[1])
        rows = []
        for j in range(flat.shape[1]):
            found = torch.autograd.grad(
                flat[:, j].sum(), list(state), retain_graph=True, allow_unused=True
            )
            full = [
                torch.zeros_like(s) if f is None else f for f, s in zip(found, state, strict=True)
            ]
            rows.append(self._flat(full))
        return torch.stack(rows, 2)

    @staticmethod
    def _flat(leaves: Leaves) -> Tensor:
        """(n, S)."""
        return torch.cat([t.unsqueeze(-1).flatten(1) for t in leaves], 1)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b
