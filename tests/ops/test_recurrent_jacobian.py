"""The Jacobian of all steps of a layer: as gradients of each unit of the last state."""

import pytest
import torch
from support.cases import relative_error

from bppsa_lightning import ops
from bppsa_lightning._cells import CELLS
from bppsa_lightning.ops.recurrent_jacobian import bytes_of_walk, jacobian_by_walk

I, H = 3, 7


def layer(cell, T, B, projected, dtype, gain):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    G, P = CELLS[cell].gates, 4 if projected else H
    has_c = CELLS[cell].has_c
    return ops.Operands(
        draw(T, B, I), draw(B, P), draw(B, H) if has_c else None, draw(G * H, I),
        gain * draw(G * H, P) / P**0.5, draw(G * H), draw(G * H), draw(P, H) if projected else None,
    )  # fmt: skip


def wanted(cell, operands, output, kept):
    """(B, S, S), a backward for each unit."""
    B, P = output.shape[1:]
    S, has_c = P + H * CELLS[cell].has_c, CELLS[cell].has_c
    rows = []
    for unit in torch.eye(S, dtype=output.dtype).unsqueeze(1).expand(S, B, S):
        h, c = unit[:, :P].contiguous(), unit[:, P:].contiguous() if has_c else None
        asked = (False, True, has_c, *[False] * 5)
        _, *found = ops.run_backward(cell, None, h, c, output, kept, operands, asked)
        rows.append(torch.cat([g for g in found if g is not None], 1))
    return torch.stack(rows, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("T", "B"), [(1, 1), (2, 3), (90, 2), (700, 1), (5, 0)])
@pytest.mark.parametrize(
    ("cell", "projected", "keep"),
    [(cell, False, keep) for cell in CELLS for keep in (1, 2)] + [("lstm", True, 2)],
)
def test_the_jacobian_of_all_steps(cell, projected, keep, T, B, dtype):
    gain = 0.5 if cell == "rnn_relu" else 1.5
    operands = layer(cell, T, B, projected, dtype, gain)
    output, *_, kept = ops.run_forward(cell, *operands, False, keep, "linear")
    found = ops.recurrent_jacobian(cell, operands, output, kept)
    truth = wanted(cell, operands, output, kept)
    for have in (found, jacobian_by_walk(cell, operands, output, kept)):
        assert have.shape == truth.shape
        of_denormals = 8 * torch.finfo(dtype).tiny  # which some walks take for zero
        faded = truth.numel() and float((have - truth).abs().max()) <= of_denormals
        assert faded or relative_error(have, truth) < (1e-5 if dtype == torch.float32 else 1e-13)


def test_what_has_faded_is_nothing():
    operands = layer("gru", 4000, 1, False, torch.float32, 0.3)
    output, *_, kept = ops.run_forward("gru", *operands, False, 2, "linear")
    assert not ops.recurrent_jacobian("gru", operands, output, kept).any()


@pytest.mark.parametrize("keep", [1, 2])
def test_what_a_walk_copies_is_counted(keep):
    """As much as all copies have, or somewhat more."""
    operands = layer("lstm", 6, 2, False, torch.float32, 1.0)
    output, *_, kept = ops.run_forward("lstm", *operands, False, keep, "linear")
    copied = 2 * H * sum(t.nbytes for t in (operands.x, output, kept))
    assert copied <= bytes_of_walk("lstm", 6, 2, I, H, H, 4) <= 3 * copied
