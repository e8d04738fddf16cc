"""The maths of the project in plain torch: the oracle of every test, and the place to read first.

T steps, B batch, H state, I input, P state that an LSTM shows (H, or its projection). A chain
x_0 -> x_1 -> ... -> x_T has transposed Jacobians J_iᵀ = (∂x_i/∂x_{i-1})ᵀ and direct gradients u_i
(what the loss sends into x_i); back-propagation is g_T = u_T, g_i = J_{i+1}ᵀ g_{i+1} + u_i. One
step is the affine map (A, b) = (J_{i+1}ᵀ, u_i); maps compose associatively, which is what every
parallel scan here rests on (arXiv:1907.10134, section 3).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import jacrev
from torch.nn.functional import conv2d, linear, pad


def reverse_scan(jac_t: Tensor, grad: Tensor) -> Tensor:
    """g (T+1, B, H) from jac_t (T, B, H, H) and grad (T+1, B, H), one step after the other."""
    g = [grad[-1]]
    for jac, u in zip(jac_t.flip(0), grad[:-1].flip(0), strict=True):
        g.append((jac @ g[-1].unsqueeze(-1)).squeeze(-1) + u)
    return torch.stack(g[::-1])


def compose(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """(A1, b1) ∘ (A2, b2) = (A1 A2, A1 b2 + b1); A (B, H, H), b (B, H)."""
    (a1, b1), (a2, b2) = left, right
    return a1 @ a2, (a1 @ b2.unsqueeze(-1)).squeeze(-1) + b1


def cross(node: tuple[Tensor, Tensor], g: Tensor) -> Tensor:
    """A g + b: the gradient at a node's left end from the gradient at its right end."""
    a, b = node
    return (a @ g.unsqueeze(-1)).squeeze(-1) + b


def blelloch_scan(jac_t: Tensor, grad: Tensor, levels: int) -> Tensor:
    """The same g by `levels` levels of up-sweep, a linear scan over the roots, a down-sweep."""
    tree = [list(zip(jac_t, grad[:-1], strict=True))]
    for _ in range(levels):
        below = tree[-1]
        tree.append([_pair(below[i : i + 2]) for i in range(0, len(below), 2)])
    carries = [grad[-1]]
    for node in tree[-1][:0:-1]:
        carries.append(cross(node, carries[-1]))
    carries = carries[::-1]
    for below in tree[-2::-1]:
        carries = [c for i, g in enumerate(carries) for c in _children(below[2 * i : 2 * i + 2], g)]
    return torch.stack([cross(tree[0][0], carries[0]), *carries]) if tree[0] else grad.clone()


def _pair(children: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return compose(*children) if len(children) == 2 else children[0]


def _children(children: list[tuple[Tensor, Tensor]], g: Tensor) -> list[Tensor]:
    return [cross(children[1], g), g] if len(children) == 2 else [g]


def of_input(x: Tensor, w_ih: Tensor | None, b_ih: Tensor | None) -> Tensor:
    """W_ih x + b_ih, x (..., I); without w_ih x + b_ih, as x is what W_ih would make of it."""
    if w_ih is not None:
        return linear(x, w_ih, b_ih)
    return x if b_ih is None else x + b_ih


def rnn(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    nonlinearity: str = "tanh",
    reverse: bool = False,
) -> Tensor:
    """h_t = φ(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh): x (T, B, I), h0 (B, H) -> (T, B, H).

    Reversed, time runs from T-1 to 0: entry t of the result is the state after steps T-1 ... t.
    """
    if reverse:
        return rnn(x.flip(0), h0, w_ih, w_hh, b_ih, b_hh, nonlinearity).flip(0)
    h, output = h0, []
    for x_t in x:
        h = getattr(torch, nonlinearity)(of_input(x_t, w_ih, b_ih) + linear(h, w_hh, b_hh))
        output.append(h)
    return torch.stack(output)


def gru(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """h_t = (1 - z) n + z h_{t-1}: x (T, B, I), h0 (B, H), w_ih (3H, I), w_hh (3H, H) -> (T, B, H).

    r, z = σ(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), n = tanh(W_in x_t + b_in + r (W_hn h_{t-1} +
    b_hn)); the weights' rows in the order r, z, n.
    """
    if reverse:
        return gru(x.flip(0), h0, w_ih, w_hh, b_ih, b_hh).flip(0)
    h, output = h0, []
    for x_t in x:
        from_x, from_h = of_input(x_t, w_ih, b_ih).chunk(3, -1), linear(h, w_hh, b_hh).chunk(3, -1)
        r, z = (torch.sigmoid(a + b) for a, b in zip(from_x[:2], from_h[:2], strict=True))
        n = torch.tanh(from_x[2] + r * from_h[2])
        h = (1 - z) * n + z * h
        output.append(h)
    return torch.stack(output)


def ligru(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """h_t = (1 - z) n + z h_{t-1}: x (T, B, I), h0 (B, H), w_ih (2H, I), w_hh (2H, H) -> (T, B, H).

    z = σ(W_iz x_t + b_iz + W_hz h_{t-1} + b_hz), n likewise with relu; the weights' rows in the
    order z, n.
    """
    if reverse:
        return ligru(x.flip(0), h0, w_ih, w_hh, b_ih, b_hh).flip(0)
    h, output = h0, []
    for x_t in x:
        z, n = (of_input(x_t, w_ih, b_ih) + linear(h, w_hh, b_hh)).chunk(2, -1)
        z, n = torch.sigmoid(z), torch.relu(n)
        h = (1 - z) * n + z * h
        output.append(h)
    return torch.stack(output)


def lstm(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    w_hr: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """c_t = f c_{t-1} + i g, h_t = W_hr (o tanh(c_t)): every h (T, B, P) and every c (T, B, H).

    i, f, o = σ(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), g likewise with tanh; the weights' rows in
    the order i, f, g, o. x (T, B, I), h0 (B, P), c0 (B, H), w_ih (4H, I), w_hh (4H, P), w_hr (P, H)
    or None for P = H.
    """
    if reverse:
        h, c = lstm(x.flip(0), h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr)
        return h.flip(0), c.flip(0)
    h, c, output, cells = h0, c0, [], []
    for x_t in x:
        i, f, g, o = (of_input(x_t, w_ih, b_ih) + linear(h, w_hh, b_hh)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        h = h if w_hr is None else linear(h, w_hr)
        output.append(h)
        cells.append(c)
    return torch.stack(output), torch.stack(cells)


def peephole(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    w_hr: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """`lstm`, whose gates see c, each unit its own: every h (T, B, P) and every c (T, B, H).

    b_hh (4H,) or None is no bias, but what the gates i, f, g take of c_{t-1} and o of c_t.
    """
    if reverse:
        h, c = peephole(x.flip(0), h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr)
        return h.flip(0), c.flip(0)
    H = c0.shape[1]
    p_i, p_f, p_g, p_o = x.new_zeros(4, H) if b_hh is None else b_hh.view(4, H)
    h, c, output, cells = h0, c0, [], []
    for x_t in x:
        i, f, g, o = (of_input(x_t, w_ih, b_ih) + linear(h, w_hh)).chunk(4, -1)
        i, f, g = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c), torch.tanh(g + p_g * c)
        c = f * c + i * g
        h = torch.sigmoid(o + p_o * c) * torch.tanh(c)
        h = h if w_hr is None else linear(h, w_hr)
        output.append(h)
        cells.append(c)
    return torch.stack(output), torch.stack(cells)


def indrnn(
    x: Tensor, h0: Tensor, u: Tensor, nonlinearity: str = "relu", reverse: bool = False
) -> Tensor:
    """h_t = φ(x_t + u h_{t-1}), unit by unit: x (T, B, H), h0 (B, H), u (H,) -> (T, B, H)."""
    if reverse:
        return indrnn(x.flip(0), h0, u, nonlinearity).flip(0)
    h, output = h0, []
    for x_t in x:
        h = getattr(torch, nonlinearity)(x_t + u * h)
        output.append(h)
    return torch.stack(output)


def diagonal_scan(decay: Tensor, grad: Tensor) -> Tensor:
    """g (T+1, B, H) from decay (T, B, H), the diagonals of the Jacobians, and grad (T+1, B, H)."""
    g = [grad[-1]]
    for a, u in zip(decay.flip(0), grad[:-1].flip(0), strict=True):
        g.append(a * g[-1] + u)
    return torch.stack(g[::-1])


def linear_recurrence(decay: Tensor, x: Tensor, initial: Tensor | None = None) -> Tensor:
    """h_t = decay_t h_{t-1} + x_t, (T, B, H), from h_0 = initial (B, H) or zeros."""
    h, states = x.new_zeros(x.shape[1:]) if initial is None else initial, []
    for a, x_t in zip(decay, x, strict=True):
        h = a * h + x_t
        states.append(h)
    return torch.stack(states)


def transposed_jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(∂ function(x) / ∂x)ᵀ in full: a row for each number of x, a column for each of its image."""
    outputs = function(x).numel()
    return jacrev(function)(x).reshape(outputs, x.numel()).T


def sparse_conv2d(
    x: Tensor,
    values: Tensor,
    rows: Tensor,
    entries: Tensor,
    geometry: Sequence[list[int]],
    groups: int,
) -> Tensor:
    """The convolution of x (B, C, H, W) with the surviving weights `values`, by the dense one.

    rows, entries: of `bppsa_lightning.ops.SparsePattern`. geometry: kernel, stride, padding (top,
    bottom, left, right) and dilation.
    """
    kernel, stride, (top, bottom, left, right), dilation = geometry
    O, C, taps = len(rows) - 1, x.shape[1] // groups, kernel[0] * kernel[1]
    out = torch.repeat_interleave(torch.arange(O, device=rows.device), rows.diff())
    channel, tap = entries.long().unbind(1)
    index = (out * C + channel % C) * taps + tap if C else out
    flat = values.new_zeros(O * C * taps).index_put((index,), values)
    padded = pad(x, (left, right, top, bottom))
    return conv2d(padded, flat.view(O, C, *kernel), None, stride, 0, dilation, groups)


def before_relu_and_pool(
    grad: Tensor, output: Tensor | None, places: Tensor | None, size: Sequence[int]
) -> Tensor:
    """The gradient (O, H, W, B) of a sparse layer's own output, from that of what follows it.

    grad, output, places: (O, H', W', B). output: of a ReLU, or None. places: of a maximum over
    windows of 2 x 2 pixels, or None: which pixel each window took (0 to 3 in reading order, 4 for
    none). size: H, W.
    """
    if output is not None:
        grad = grad.masked_fill(output <= 0, 0)
    if places is None:
        return grad
    pixels = [grad.masked_fill(places != k, 0) for k in range(4)]
    rows = [torch.stack(pair, 3).flatten(2, 3) for pair in (pixels[:2], pixels[2:])]
    full = torch.stack(rows, 2).flatten(1, 2)
    return pad(full, (0, 0, 0, size[1] - full.shape[2], 0, size[0] - full.shape[1]))
