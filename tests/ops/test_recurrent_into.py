"""A recurrent layer that reads and writes in any strides: as one with tensors of its own."""

import pytest
import torch
from support.recurrent_layers import TWO_STATES

from bppsa_lightning import ops, planner
from bppsa_lightning._cells import CELLS

T, B, I, H = 12, 5, 3, 7


def layer(cell, projection=None):
    torch.manual_seed(0)
    gates, P = CELLS[cell].gates, projection or H
    tensors = [
        torch.randn(T, B, I), torch.randn(B, P), torch.randn(B, H) if cell in TWO_STATES else None,
        *(0.4 * torch.randn(gates * H, n) for n in (I, P)), torch.randn(gates * H),
        torch.randn(gates * H), torch.randn(P, H) if projection else None,
    ]  # fmt: skip
    return ops.Operands(*(None if t is None else t.double() for t in tensors))


def strewn(t):
    """The same numbers in memory where samples lie far apart, and others between them."""
    size = *t.shape[:2], t.shape[2] + 3
    return torch.full(size, float("nan"), dtype=t.dtype).transpose(0, 1).contiguous().transpose(
        0, 1
    )[..., 1 : 1 + t.shape[2]].copy_(t)  # fmt: skip


@pytest.mark.parametrize("saved", [planner.Saved.STATES, planner.Saved.GATES])
@pytest.mark.parametrize(
    "cell, projection", [(cell, None) for cell in CELLS] + [("lstm", 4)], ids=str
)
def test_strides_of_inputs_and_results_do_not_matter(cell, projection, saved):
    operands = layer(cell, projection)
    leaves = [None if t is None else t.requires_grad_() for t in operands]
    output, h_n, c_n = ops.run_layer(cell, ops.Operands(*leaves), False, "linear")
    u, v = torch.randn_like(output), torch.randn_like(h_n)
    has_c = cell in TWO_STATES
    w = torch.randn_like(c_n) if has_c else None
    loss = (output * u).sum() + (h_n * v).sum() + ((c_n * w).sum() if has_c else 0)
    expected = torch.autograd.grad(loss, [t for t in leaves if t is not None])

    plain = ops.Operands(*(None if t is None else t.detach() for t in operands))
    plain = plain._replace(x=strewn(plain.x))
    room, kept = map(strewn, ops.recurrent_room(cell, plain, saved))
    last = ops.recurrent_into(cell, plain, room, kept)
    for found, true in zip([room, *last], [output, h_n, c_n], strict=False):
        torch.testing.assert_close(found, true.detach())
    assert len(last) == 1 + has_c
    for found, true in zip(ops.recurrent_into(cell, plain), last, strict=True):
        assert torch.equal(found, true)  # without results

    grad_x = strewn(torch.zeros_like(plain.x))
    wanted = tuple(t is not None for t in plain[1:])
    found = ops.recurrent_backward_into(cell, plain, room, kept, strewn(u), (v, w), grad_x, wanted)
    gradients = [grad_x, *(g for g in found if g is not None)]
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_what_does_not_fit_is_named():
    operands = layer("gru")
    output, kept = ops.recurrent_room("gru", operands, planner.Saved.GATES)
    with pytest.raises(RuntimeError, match="output: wanted"):
        ops.recurrent_into("gru", operands, output[1:], kept)
    with pytest.raises(RuntimeError, match="kept: wanted"):
        ops.recurrent_into("gru", operands, output, kept[:, 1:])
    with pytest.raises(RuntimeError, match="kept: wanted what a forward"):
        ops.recurrent_backward_into(
            "gru", operands, output, kept[..., 1:], None, (None, None), None, (True,) * 7
        )
