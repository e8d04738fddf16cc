"""bl.ops.linear_recurrence: against the loop; broadcasting; derivatives."""

import pytest
import torch
from support.cases import DEVICES, DTYPES, relative_error
from support.diagonal import chain

from bppsa_lightning import planner
from bppsa_lightning.ops import linear_recurrence
from bppsa_lightning.reference import linear_recurrence as recurrence_oracle


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_initial", [False, True])
@pytest.mark.parametrize("T", [1, 2, 30])
def test_linear_recurrence_equals_the_loop(T, with_initial, dtype, device):
    decay, x = chain(T, 3, 5, dtype, device)
    x = x[1:].clone()
    initial = torch.linspace(-1, 1, 15).view(3, 5).to(x) if with_initial else None
    for algorithm in planner.ALGORITHMS:
        found = linear_recurrence(decay, x, initial, algorithm)
        wide = [None if t is None else t.double() for t in (decay, x, initial)]
        assert relative_error(found, recurrence_oracle(*wide)) < DTYPES[dtype]
        assert found.dtype == dtype and found.is_contiguous()


@pytest.mark.parametrize("shape", [(6, 2, 3), (3,), (2, 1), (6, 1, 3), ()], ids=str)
def test_linear_recurrence_broadcasts_decay_and_is_differentiable_twice(shape):
    generator = torch.Generator().manual_seed(1)
    decay, x, initial = (
        torch.randn(s, dtype=torch.float64, generator=generator, requires_grad=True)
        for s in (shape, (6, 2, 3), (2, 3))
    )
    wanted = recurrence_oracle(decay.expand(6, 2, 3), x, initial)
    assert relative_error(linear_recurrence(decay, x, initial), wanted) < 1e-14
    assert torch.autograd.gradcheck(linear_recurrence, (decay, x, initial))
    assert torch.autograd.gradgradcheck(linear_recurrence, (decay, x, initial))
    assert torch.autograd.gradcheck(linear_recurrence, (decay, x))


def test_linear_recurrence_reads_batch_first_data_where_it_lies():
    decay, x = torch.rand(4, 30, 5), torch.randn(4, 30, 5)
    found = linear_recurrence(decay.transpose(0, 1), x.transpose(0, 1))
    wanted = recurrence_oracle(*(t.transpose(0, 1).double() for t in (decay, x)))
    assert relative_error(found, wanted) < 1e-6
