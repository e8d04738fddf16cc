"""The cells of `bl.nn` that torch.nn lacks, in plain torch, one step after the other.

T steps, B batch, H state, I input. Each cell is a function of one step, from which `walk` makes one
of all steps: what every test of `bl.nn` compares with. `entering` is the state where it enters
W_hh, which is not h under recurrent dropout.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

# x_t, a state's parts -> the next state's.
Step = Callable[..., tuple[Tensor, ...]]


def walk(step: Step, x: Tensor, *state: Tensor, reverse: bool = False) -> tuple[Tensor, ...]:
    """Every state of a step: x (T, B, I), h0 (B, H) (and c0) -> h (T, B, H) (and c).

    Reversed, time runs from T-1 to 0: entry t is the state after steps T-1 ... t.
    """
    if reverse:
        return tuple(s.flip(0) for s in walk(step, x.flip(0), *state))
    states = []
    for x_t in x:
        state = step(x_t, *state)
        states.append(state)
    return tuple(torch.stack(same) for same in zip(*states, strict=True))


def normalised(v: Tensor, gain: Tensor, shift: Tensor | None = None) -> Tensor:
    """gain (v - mean) / sqrt(var + 1e-5) + shift over the last dimension."""
    centred = v - v.mean(-1, keepdim=True)
    v = gain * centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
    return v if shift is None else v + shift


def normalised_over_rows(
    v: Tensor, gain: Tensor, shift: Tensor | None, mean: Tensor | None = None,
    var: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Batch normalisation of v (N, F): by its own mean and variance, or given ones (F,)."""
    if mean is None or var is None:
        mean = v.mean(0)
        var = ((v - mean) ** 2).mean(0)
    v = gain * (v - mean) / torch.sqrt(var + 1e-5)
    return v if shift is None else v + shift


def peephole_lstm(
    x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None,
    b_hh: Tensor | None, w_ch: Tensor, entering: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A step of an LSTM with peepholes (Gers et al., JMLR 3, 2002), w_ch (3H,) for i, f, o.

    i, f = σ(a + p c_{t-1}), g = tanh(a_g), c_t = f c_{t-1} + i g, o = σ(a_o + p_o c_t),
    h_t = o tanh(c_t), with a = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh in rows i, f, g, o.
    """
    H = c.shape[-1]
    a = linear(x, w_ih, b_ih) + linear(h if entering is None else entering, w_hh, b_hh)
    i = torch.sigmoid(a[:, :H] + w_ch[:H] * c)
    f = torch.sigmoid(a[:, H : 2 * H] + w_ch[H : 2 * H] * c)
    c = f * c + i * torch.tanh(a[:, 2 * H : 3 * H])
    o = torch.sigmoid(a[:, 3 * H :] + w_ch[2 * H :] * c)
    return o * torch.tanh(c), c


def layer_norm_lstm(
    x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None,
    b_hh: Tensor | None, norm_ih: Tensor, norm_hh: Tensor, norm_c: Tensor,
    b_c: Tensor | None = None, entering: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A step of a layer-norm LSTM (arXiv:1607.06450, equations 20 to 22), rows i, f, g, o.

    LN(W_ih x_t) + LN(W_hh h_{t-1}) are the gates, h_t = σ(o) tanh(LN(c_t)).
    """
    of_x = normalised(linear(x, w_ih), norm_ih, b_ih)
    of_h = normalised(linear(h if entering is None else entering, w_hh), norm_hh, b_hh)
    i, f, g, o = (of_x + of_h).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(normalised(c, norm_c, b_c)), c


def layer_norm_gru(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None,
    norm_ih: Tensor, norm_hh: Tensor, entering: Tensor | None = None,
) -> tuple[Tensor]:  # fmt: skip
    """A step of a layer-norm GRU (arXiv:1607.06450, supplement): r and z together, n by itself."""
    H = h.shape[-1]

    def parts(v: Tensor, gain: Tensor, shift: Tensor | None) -> tuple[Tensor, ...]:
        first, second = (slice(None, 2 * H), slice(2 * H, None))
        of = [
            normalised(v[:, rows], gain[rows], None if shift is None else shift[rows])
            for rows in (first, second)
        ]
        return (*of[0].chunk(2, -1), of[1])

    of_x = parts(linear(x, w_ih), norm_ih, b_ih)
    of_h = parts(linear(h if entering is None else entering, w_hh), norm_hh, b_hh)
    r, z = torch.sigmoid(of_x[0] + of_h[0]), torch.sigmoid(of_x[1] + of_h[1])
    n = torch.tanh(of_x[2] + r * of_h[2])
    return ((1 - z) * n + z * h,)


def indrnn(
    x: Tensor, h: Tensor, w_ih: Tensor, u: Tensor, b_ih: Tensor | None, nonlinearity: str = "relu",
    entering: Tensor | None = None,
) -> tuple[Tensor]:  # fmt: skip
    """A step of an IndRNN (arXiv:1803.04831, equation 2): φ(W_ih x_t + b_ih + u h_{t-1})."""
    summed = linear(x, w_ih, b_ih) + u * (h if entering is None else entering)
    return (getattr(torch, nonlinearity)(summed),)


def ligru(
    x: Tensor, h: Tensor, w_hh: Tensor, b_hh: Tensor | None, entering: Tensor | None = None
) -> tuple[Tensor]:
    """A step of a Li-GRU (arXiv:1803.10225, equations 4) from x (B, 2H), rows z, n.

    x is `normalised_over_rows` of W_ih x_t of all steps, or W_ih x_t + b_ih.
    """
    z, n = (x + linear(h if entering is None else entering, w_hh, b_hh)).chunk(2, -1)
    z = torch.sigmoid(z)
    return (z * h + (1 - z) * torch.relu(n),)


def mingru(x: Tensor, h: Tensor, w_ih: Tensor, b_ih: Tensor | None) -> tuple[Tensor]:
    """A step of a minGRU (arXiv:2410.01201, section 3.1), rows z, n."""
    z, n = linear(x, w_ih, b_ih).chunk(2, -1)
    z = torch.sigmoid(z)
    return ((1 - z) * h + z * n,)
