"""Whether states have met: the operator, beside the same in plain PyTorch."""

import pytest
import torch

from bppsa_lightning import ops
from bppsa_lightning.windows import Levels


def near_pairs(n, B, units, dtype):
    """States, and others that some of them have met: some numbers are off by about the level."""
    true = torch.randn(n, B, *units, dtype=dtype) * 10 ** torch.randn(n, B, *[1] * len(units))
    level = torch.rand(units, dtype=dtype) * 1e-3
    apart = torch.rand(n, B, *units, dtype=dtype) * level * torch.rand(n, 1, *[1] * len(units)) * 4
    return (true + apart).to(dtype), true.to(dtype), level


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 0.3, 40.0])
@pytest.mark.parametrize("B, units", [(1, (20,)), (3, (5,)), (2, (2, 3)), (4, ()), (0, (4,))])
def test_as_in_plain_torch(B, units, size, dtype):
    torch.manual_seed(0)
    seen = []
    for n in (0, 1, 2, 40, 200):
        guessed, true, level = near_pairs(n, B, units, dtype)
        levels = Levels((level,), (size,))
        met = levels.met([guessed], [true])
        assert met == levels.met_in_torch([guessed], [true]).tolist()
        assert met == [bool(good) for good in ops.states_met(guessed, true, level, size)]
        seen += met
    assert B == 0 or len(set(seen)) == 2 or size == 0.0  # (any state is large beside nothing)


def test_layouts():
    torch.manual_seed(1)
    guessed, true, level = near_pairs(60, 2, (3, 4), torch.float32)
    met = ops.states_met(guessed, true, level, 3.0)
    assert len(set(met)) == 2
    wide = torch.stack([true, guessed], 1)
    assert ops.states_met(wide[:, 1], wide[:, 0], level, 3.0) == met
    strewn = guessed.movedim(1, -1).contiguous().movedim(-1, 1)
    assert ops.states_met(strewn, true, level.T.contiguous().T, 3.0) == met


def test_all_parts_have_to_meet():
    h, c = torch.zeros(3, 1, 2), torch.zeros(3, 1, 2)
    levels = Levels((torch.zeros(2), torch.zeros(2)), (1.0, 1.0))
    off_h, off_c = h.clone(), c.clone()
    off_h[0], off_c[2] = 1.0, 1.0
    assert levels.met([off_h, off_c], [h, c]) == [False, True, False]


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_what_is_not_finite(bad):
    states = torch.ones(6, 2, 3)
    states[1:, 0, 1] = bad
    other = states.clone()
    other[2, 0, 1], other[3, 0, 1], other[4, 1, 2], other[5, 0, 0] = 1.0, -bad, bad, 5.0
    levels = Levels((torch.full((3,), 1e-6),), (1.0,))
    met = levels.met([other], [states])
    assert met == levels.met_in_torch([other], [states]).tolist()
    assert met[:3] == [True, True, False] and not met[4]


def test_errors_name_the_argument():
    states, level = torch.zeros(3, 2, 4), torch.zeros(4)
    for bad in [
        (states[:2], states, level),
        (states.double(), states, level),
        (states, states, level[:3]),
        (states, states, level.double()),
    ]:
        with pytest.raises(RuntimeError, match="guessed, right, level: wanted"):
            ops.states_met(*bad, 1.0)
    with pytest.raises(RuntimeError, match="level: found 2 dimensions, wanted two less"):
        ops.states_met(states, states, torch.zeros(2, 4), 1.0)
    with pytest.raises(RuntimeError, match="right: wanted float32 or float64"):
        ops.states_met(states.half(), states.half(), level.half(), 1.0)
