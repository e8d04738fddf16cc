"""bl.ops.peephole_lstm: its own operands. (As a cell it is in the tests of all cells.)

Letters: T steps, B batch, I input, H hidden, P state that is put out.
"""

import random

import pytest
import torch
from support.cases import relative_error
from torch.nn.functional import linear

from bppsa_lightning.ops import lstm, peephole_lstm

TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-12}


def draw(T, B, I, H, P=None, dtype=torch.float64, seed=0, bias=(True, True)):
    """x, h0, c0, w_ih, w_hh, w_c, b_ih, b_hh, w_hr."""
    generator = torch.Generator().manual_seed(seed)

    def some(*shape, scale=1.0):
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    state, scale = P or H, (P or H) ** -0.5
    biases = [some(4 * H) if given else None for given in bias]
    return [
        some(T, B, I), some(B, state), some(B, H), some(4 * H, I, scale=I**-0.5),
        some(4 * H, state, scale=scale), some(3 * H), *biases,
        some(P, H, scale=H**-0.5) if P else None,
    ]  # fmt: skip


def loop(x, h, c, w_ih, w_hh, w_c, b_ih, b_hh, w_hr, reverse=False):
    """output, h_n, c_n, as the equations are written."""
    p_i, p_f, p_o = w_c.chunk(3)
    output = []
    for x_t in x.flip(0) if reverse else x:
        i, f, g, o = (linear(x_t, w_ih, b_ih) + linear(h, w_hh, b_hh)).chunk(4, -1)
        i, f = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c)
        c = f * c + i * torch.tanh(g)
        h = torch.sigmoid(o + p_o * c) * torch.tanh(c)
        h = h if w_hr is None else linear(h, w_hr)
        output.append(h)
    output = torch.stack(output)
    return output.flip(0) if reverse else output, h, c


def gradients(layer, operands, **settings):
    leaves = [None if t is None else t.detach().requires_grad_() for t in operands]
    found = layer(*leaves, **settings)
    generator = torch.Generator().manual_seed(1)
    incoming = [torch.randn(t.shape, generator=generator).to(t) for t in found]
    given = [t for t in leaves if t is not None]
    return [*found, *torch.autograd.grad(found, given, incoming)]


@pytest.mark.parametrize("seed", range(40))
def test_random_layers_equal_the_loop(seed):
    r = random.Random(seed)
    T, B, I, H = r.choice([1, 2, 9, 40]), r.choice([1, 3, 17]), r.choice([1, 5]), r.randint(1, 40)
    dtype = r.choice(list(TOLERANCE))
    bias = (r.random() < 0.6, r.random() < 0.6)
    operands = draw(T, B, I, H, r.choice([None, None, (H + 1) // 2]), dtype, seed, bias)
    reverse, algorithm = r.random() < 0.5, r.choice(["auto", "linear", "chunked", "blelloch"])
    found = gradients(peephole_lstm, operands, reverse=reverse, algorithm=algorithm)
    wide = [None if t is None else t.double() for t in operands]
    for ours, theirs in zip(found, gradients(loop, wide, reverse=reverse), strict=True):
        assert ours.dtype == dtype and relative_error(ours, theirs.detach()) < TOLERANCE[dtype]


def test_it_is_differentiable_twice():
    operands = [t.requires_grad_() for t in draw(3, 2, 2, 3)[:-1]]
    assert torch.autograd.gradcheck(peephole_lstm, operands)
    assert torch.autograd.gradgradcheck(peephole_lstm, operands)


def test_without_peepholes_it_is_an_lstm():
    x, h0, c0, w_ih, w_hh, w_c, *rest = draw(9, 3, 2, 5)
    found = peephole_lstm(x, h0, c0, w_ih, w_hh, torch.zeros_like(w_c), *rest)
    for ours, theirs in zip(found, lstm(x, h0, c0, w_ih, w_hh, *rest), strict=True):
        assert relative_error(ours, theirs) < 1e-13


def test_compiled_whole():
    operands = draw(9, 3, 2, 5)
    compiled = torch.compile(peephole_lstm, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(
        *(gradients(f, operands) for f in (compiled, peephole_lstm)), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_errors_name_the_argument():
    x, h0, c0, w_ih, w_hh, w_c, *rest = draw(4, 2, 3, 5)
    with pytest.raises(ValueError, match=r"w_c: found shape \(14,\), wanted \(15,\)"):
        peephole_lstm(x, h0, c0, w_ih, w_hh, w_c[1:], *rest)
    with pytest.raises(TypeError, match="w_c: found NoneType, wanted a torch.Tensor"):
        peephole_lstm(x, h0, c0, w_ih, w_hh, None, *rest)
    with pytest.raises(ValueError, match=r"b_hh: found shape \(19,\), wanted \(20,\)"):
        peephole_lstm(x, h0, c0, w_ih, w_hh, w_c, None, rest[1][1:])
