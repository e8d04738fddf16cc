"""Recurrences written by hand, as people write them: modules whose forward is one step."""

import torch
from torch import Tensor, nn


class LayerNormLSTM(nn.Module):
    """Ba et al., 2016: layer normalisation of the gates and of the cell."""

    def __init__(self, I, H):
        super().__init__()
        self.ih, self.hh = nn.Linear(I, 4 * H), nn.Linear(H, 4 * H)
        self.gates, self.cell = nn.LayerNorm(4 * H), nn.LayerNorm(H)
        self.state = (H, H)

    def forward(self, state, x):
        h, c = state
        i, f, g, o = self.gates(self.ih(x) + self.hh(h)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * self.cell(c).tanh()
        return (h, c), h


class GRUD(nn.Module):
    """Che et al., 2018: missing inputs decay to their mean, the state to zero.

    x is (value, whether it was seen, time since it was).
    """

    def __init__(self, I, H):
        super().__init__()
        self.I, self.state = I, (H, I)
        self.cell = nn.GRUCell(2 * I, H)
        self.decay_x, self.decay_h = nn.Linear(I, I), nn.Linear(I, H)
        self.mean = nn.Parameter(torch.randn(I))

    def inputs(self, T, B):
        return torch.randn(T, B, self.I), torch.rand(T, B, self.I), torch.rand(T, B, self.I)

    def forward(self, state, x):
        h, last = state
        value, seen, since = x
        seen = (seen > 0.5).to(value.dtype)
        keep = torch.exp(-self.decay_x(since).relu())
        last = seen * value + (1 - seen) * last
        estimate = seen * value + (1 - seen) * (keep * last + (1 - keep) * self.mean)
        h = torch.exp(-self.decay_h(since).relu()) * h
        h = self.cell(torch.cat([estimate, seen], -1), h)
        return (h, last), h


class RITS(nn.Module):
    """Cao et al., 2018: the state estimates what is missing; y has the estimate, too."""

    def __init__(self, I, H):
        super().__init__()
        self.I, self.state = I, (H, H)
        self.cell, self.regress, self.decay = (
            nn.LSTMCell(2 * I, H),
            nn.Linear(H, I),
            nn.Linear(I, H),
        )

    def inputs(self, T, B):
        return torch.randn(T, B, self.I), torch.rand(T, B, self.I)

    def forward(self, state, x):
        (h, c), (value, seen) = state, x
        seen = (seen > 0.3).to(value.dtype)
        h = h * torch.exp(-self.decay(1 - seen).relu())
        estimate = self.regress(h)
        h, c = self.cell(torch.cat([seen * value + (1 - seen) * estimate, seen], -1), (h, c))
        return (h, c), (h, estimate)


class AUGRU(nn.Module):
    """Zhou et al., 2019: an update gate scaled by an attention score; x is (value, score)."""

    def __init__(self, I, H):
        super().__init__()
        self.I, self.state = I, (H,)
        self.ih, self.hh = nn.Linear(I, 3 * H), nn.Linear(H, 3 * H)

    def inputs(self, T, B):
        return torch.randn(T, B, self.I), torch.rand(T, B, 1)

    def forward(self, state, x):
        (h,), (value, score) = state, x
        r, z, n = self.ih(value).chunk(3, -1)
        a, b, c = self.hh(h).chunk(3, -1)
        n = (n + (r + a).sigmoid() * c).tanh()
        z = score * (z + b).sigmoid()
        h = (1 - z) * h + z * n
        return (h,), h


class SRU(nn.Module):
    """Lei et al., 2018: gates that see the state through diagonals only."""

    def __init__(self, I, H):
        super().__init__()
        self.state = (H,)
        self.of_x = nn.Linear(I, 4 * H)
        self.v = nn.Parameter(torch.randn(2, H) * 0.5)

    def forward(self, state, x):
        (c,) = state
        f, r, value, skip = self.of_x(x).chunk(4, -1)
        f, r = (f + self.v[0] * c).sigmoid(), (r + self.v[1] * c).sigmoid()
        c = f * c + (1 - f) * value
        return (c,), r * c.tanh() + (1 - r) * skip


class Pendulum(nn.Module):
    """A damped pendulum that is driven by x, by a symplectic Euler step: angle and speed.

    One that winds over the top never forgets it, as its angle is 2 pi more from then on.
    """

    spread = 0.3

    def __init__(self, I, H):
        super().__init__()
        self.state = (H, H)
        self.drive = nn.Linear(I, H)
        self.stiffness = nn.Parameter(torch.rand(H) * 0.5 + 1)
        self.damping = nn.Parameter(torch.rand(H) * 0.5 + 1.8)

    def forward(self, state, x):
        angle, speed = state
        force = self.drive(x) - self.stiffness * angle.sin() - self.damping * speed
        speed = speed + 0.4 * force
        angle = angle + 0.4 * speed
        return (angle, speed), angle.sin()


CELLS = {c.__name__: c for c in (LayerNormLSTM, GRUD, RITS, AUGRU, SRU, Pendulum)}


def inputs_of(cell, T, B, I):
    """A tree of tensors (T, B, ...)."""
    return cell.inputs(T, B) if hasattr(cell, "inputs") else torch.randn(T, B, I)


def first_state(cell, B) -> tuple[Tensor, ...]:
    return tuple(getattr(cell, "spread", 1.0) * torch.randn(B, size) for size in cell.state)
