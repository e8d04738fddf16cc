"""How far a recurrence remembers, as a look finds it."""

import pytest
import torch

from bppsa_lightning.windows import Engine, look


class Decay(Engine):
    """h decays by what x says: a product of the steps' factors is what is left of its start."""

    def __call__(self, xs, state):
        h, ys = state[0], []
        for x in xs[0].unbind(0):
            h = x * h + (1 - x)
            ys.append(h)
        return [torch.stack(ys)], [h]

    def in_dtype(self, dtype):
        return self


def warm_of(factors, most):
    x = torch.tensor(factors).reshape(-1, 1, 1).repeat(1, 3, 2)
    return look(Decay(), [x], [torch.zeros(3, 2)], most).warm


def test_a_warm_up_is_a_quarter_longer_than_what_met():
    warm = warm_of([0.5] * 400, 200)
    assert 20 < warm < 60  # float32's rounding is 2**-24
    assert warm_of([0.25] * 400, 200) < warm


@pytest.mark.parametrize("factor", [1.0, 0.99])
def test_what_does_not_forget_in_time_is_given_up(factor):
    assert warm_of([factor] * 400, 200) is None


def test_what_holds_for_a_while_and_then_lets_go_is_waited_for():
    # Each piece begins at a multiple of 200 steps: forgets, holds for 80 steps, forgets again.
    factors = [*[0.7] * 20, *[0.9999] * 80, *[0.5] * 100]
    assert 100 < warm_of(factors * 8, 200) < 200
