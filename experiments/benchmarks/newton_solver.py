"""Newton's method for a nonlinear recurrence: all time steps at once, by scans over Jacobians.

T steps, B batch, H units, S state (H; an LSTM's is h and c, 2H), G gates. The states of
s_t = f(s_{t-1}, x_t) are the root of r_t = f(s_{t-1}, x_t) - s_t. An iteration linearises f around
the states at hand and solves for their change, d_t = J_t d_{t-1} + r_t, which is the scan of a
backward pass with time turned round and J_t in place of J_tᵀ. Inside the solver time runs
backwards, so that no Jacobian has to be moved.

Sources: DEER (arXiv:2309.12252), DeepPCR (arXiv:2309.16318). `diagonal`: quasi-DEER
(arXiv:2407.19115), the diagonals of the Jacobians only. That paper's damping, ELK, needs a Kalman
smoother in place of the scan, and is not here.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import bppsa_lightning as bl

TOLERANCE, MOST = 1e-6, 100  # of the largest change of a state; iterations
# Of a state's change in one iteration: beyond, the scan has overflowed, or is about to.
LARGEST = 1e3


def weighed(
    scales: list[Tensor], weights: tuple[Tensor, ...], diagonal: bool, out: Tensor | None = None
) -> Tensor:
    """Σ_k diag(scales_k) W_k, (…, H, H), of scales (…, H); or its diagonal, (…, H)."""
    if diagonal:
        return sum(s * w.diagonal() for s, w in zip(scales, weights, strict=True))
    first, *rest = scales
    total = torch.mul(first.unsqueeze(-1), weights[0], out=out)
    for s, w in zip(rest, weights[1:], strict=True):
        total.addcmul_(s.unsqueeze(-1), w)
    return total


class RNN:
    """h' = tanh(a + W h); `a` is what the input gives to each gate, biases included."""

    gates, parts = 1, 1  # G; S = parts · H

    def __init__(self, module: nn.RNNBase) -> None:
        self.module, self.H = module, module.hidden_size
        self.weights = module.weight_hh_l0.detach().chunk(self.gates)

    def inputs(self, x: Tensor) -> Tensor:
        """(T, B, G·H) of x (T, B, I)."""
        return linear(x, self.module.weight_ih_l0, self.module.bias_ih_l0)

    def recurrent(self, state: Tensor) -> tuple[Tensor, ...]:
        """W h + b of each gate."""
        h = state[..., : self.H]
        return linear(h, self.module.weight_hh_l0, self.module.bias_hh_l0).chunk(self.gates, -1)

    def step(self, a: Tensor, state: Tensor) -> tuple[Tensor, Any]:
        """The next state (…, S), and what `jacobian` needs of the step."""
        after = torch.tanh(a + self.recurrent(state)[0])
        return after, after

    def jacobian(
        self, state: Tensor, kept: Any, diagonal: bool, out: Tensor | None = None
    ) -> Tensor:
        """∂ next state / ∂ state, (…, S, S); or its diagonal, (…, S).

        Args:
            state, kept: before the step, and of it.
            diagonal: which of the two.
            out: an earlier result, which may be overwritten: new memory costs more than the sums.
        """
        return weighed([1 - kept * kept], self.weights, diagonal, out)


class GRU(RNN):
    """h' = (1 - z) n + z h."""

    gates = 3

    def step(self, a: Tensor, state: Tensor) -> tuple[Tensor, Any]:
        of_h = self.recurrent(state)
        of_x = a.chunk(3, -1)
        r, z = torch.sigmoid(of_x[0] + of_h[0]), torch.sigmoid(of_x[1] + of_h[1])
        n = torch.tanh(of_x[2] + r * of_h[2])
        return (1 - z) * n + z * state, (r, z, n, of_h[2])

    def jacobian(
        self, state: Tensor, kept: Any, diagonal: bool, out: Tensor | None = None
    ) -> Tensor:
        r, z, n, of_h = kept
        by_n = (1 - z) * (1 - n * n)
        scales = [by_n * of_h * r * (1 - r), (state - n) * z * (1 - z), by_n * r]
        total = weighed(scales, self.weights, diagonal, out)
        (total if diagonal else total.diagonal(dim1=-2, dim2=-1)).add_(z)
        return total


class LSTM(RNN):
    """c' = f c + i g, h' = o tanh(c'); the state is (h, c)."""

    gates, parts = 4, 2

    def step(self, a: Tensor, state: Tensor) -> tuple[Tensor, Any]:
        c = state[..., self.H :]
        i, f, g, o = (p + q for p, q in zip(a.chunk(4, -1), self.recurrent(state), strict=True))
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        t = torch.tanh(c)
        return torch.cat([o * t, c], -1), (i, f, g, o, t)

    def jacobian(
        self, state: Tensor, kept: Any, diagonal: bool, out: Tensor | None = None
    ) -> Tensor:
        i, f, g, o, t = kept
        H, c = self.H, state[..., self.H :]
        by_c = o * (1 - t * t)
        scales = [g * i * (1 - i), c * f * (1 - f), i * (1 - g * g)]
        if diagonal:
            h_of_h = by_c * weighed(scales, self.weights[:3], diagonal)
            h_of_h += t * o * (1 - o) * self.weights[3].diagonal()
            return torch.cat([h_of_h, f], -1)
        total = state.new_zeros(*state.shape, 2 * H) if out is None else out
        c_of_h = weighed(scales, self.weights[:3], diagonal, total[..., H:, :H])
        h_of_h = torch.mul(c_of_h, by_c.unsqueeze(-1), out=total[..., :H, :H])
        h_of_h.addcmul_((t * o * (1 - o)).unsqueeze(-1), self.weights[3])
        total[..., H:, H:].diagonal(dim1=-2, dim2=-1).copy_(f)
        total[..., :H, H:].diagonal(dim1=-2, dim2=-1).copy_(by_c * f)
        return total


CELLS = {nn.RNN: RNN, nn.GRU: GRU, nn.LSTM: LSTM}


@dataclass
class Solution:
    """What Newton's method found.

    Attributes:
        states: (T, B, S).
        iterations: of which the last changed no state by the tolerance, if `converged`.
        converged: whether the changes fell below the tolerance.
        change: the largest of the last iteration.
    """

    states: Tensor
    iterations: int
    converged: bool
    change: float


@torch.no_grad()
def solve(
    cell: RNN, a: Tensor, initial: Tensor, diagonal: bool, tolerance: float, most: int
) -> Solution:
    """Iterates from states that are zero; where a scan overflows, f alone gives the next state.

    Args:
        a: (T, B, G·H), of `cell.inputs`.
        initial: (B, S).
        tolerance: for the largest change of a state.
        most: iterations.
    """
    a = a.flip(0)
    states = initial.new_zeros(len(a), *initial.shape)
    scan = bl.ops.diagonal_scan if diagonal else bl.ops.reverse_scan
    jac, iterations, largest = None, 0, float("inf")
    while iterations < most and largest >= tolerance:
        iterations += 1
        before = torch.cat([states[1:], initial.unsqueeze(0)])
        after, kept = cell.step(a, before)
        residual = after - states
        jac = cell.jacobian(before, kept, diagonal, jac)
        change = scan(jac[:-1], residual)
        change = torch.where(change.abs() < LARGEST, change, residual)  # NaN too
        states = states + change
        largest = float(change.abs().max())
    return Solution(states.flip(0), iterations, largest < tolerance, largest)


class Implicit(torch.autograd.Function):
    """The identity on all states; backwards a scan adds what reaches each through later ones.

    The Jacobians are made anew, in full: their diagonals alone would give a wrong gradient.
    """

    @staticmethod
    def forward(ctx: Any, after: Tensor, cell: RNN, a: Tensor, before: Tensor) -> Tensor:
        ctx.cell = cell
        ctx.save_for_backward(a, before)
        return after.view_as(after)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        a, before = ctx.saved_tensors
        jac = ctx.cell.jacobian(before, ctx.cell.step(a, before)[1], False)
        return bl.ops.reverse_scan(jac[1:].mT, grad), None, None, None


def forward(
    module: nn.RNNBase,
    x: Tensor,
    diagonal: bool = False,
    tolerance: float = TOLERANCE,
    most: int = MOST,
) -> tuple[Tensor, Solution]:
    """The output (T, B, H) of a recurrent layer, differentiable, and the solution behind it.

    Args:
        module: nn.RNN (tanh), nn.GRU or nn.LSTM of one layer, one direction, with biases; it begins
            with zeros.
        x: (T, B, I).
        diagonal, tolerance, most: as of `solve`.
    """
    cell = CELLS[type(module)](module)
    a = cell.inputs(x)
    initial = x.new_zeros(x.shape[1], cell.parts * cell.H)
    solution = solve(cell, a.detach(), initial, diagonal, tolerance, most)
    before = torch.cat([initial.unsqueeze(0), solution.states[:-1]])
    after = cell.step(a, before)[0]
    return Implicit.apply(after, cell, a.detach(), before)[..., : cell.H], solution
