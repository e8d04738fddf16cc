"""What a step detaches requires no gradient in what `bl.scan` returns, as in the loop."""

import pytest
import torch
from torch.utils import _pytree as pytree

import bppsa_lightning as bl

T, B, H = 200, 2, 3


def y_detached(w, h, x):
    new = torch.tanh(x + h @ w)
    return new, new.detach()


def state_detached(w, h, x):
    new = torch.tanh(x + h @ w)
    return new.detach(), new


def all_detached(w, h, x):
    new = torch.tanh(x + h / 3).detach()
    return new, (new @ w).detach()


def of_no_parameter(w, h, x):
    return h / 2 + x, (h.sin(), h > 0)


def of_a_parameter_in_y_alone(w, h, x):
    return h / 2 + x, x @ w


def a_step_later(w, state, x):
    """A gradient comes to y with the second step."""
    a, b = state
    return (a / 2 + x @ w, a / 10), b


def a_running_mean(w, state, x):
    a, mean = state
    return (a / 2 + x @ w, 0.9 * mean.detach() + 0.1 * a.detach()), (mean, a)


def changes_the_state(w, h, x):
    h.mul_(0.5)
    return h + x, x.detach()


PAIRS = (a_step_later, a_running_mean)
STEPS = [y_detached, state_detached, all_detached, of_no_parameter, of_a_parameter_in_y_alone]


@pytest.mark.parametrize(
    "step", [*STEPS, *PAIRS, changes_the_state], ids=lambda step: step.__name__
)
@pytest.mark.parametrize("algorithm", ["auto", "speculative", "blelloch"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_as_in_the_loop(step, algorithm, checkpoint):
    torch.manual_seed(0)
    w = (torch.randn(H, H) / 3).requires_grad_()
    for xs_wants in (False, True):
        for init_wants in (False, True):
            xs = torch.randn(T, B, H, requires_grad=xs_wants)
            h = torch.zeros(B, H, requires_grad=init_wants)
            init = (h, torch.zeros(B, H)) if step in PAIRS else h
            loop, scan = results_of(step, w, init, xs, algorithm, checkpoint)
            assert [t.requires_grad for t in scan] == [t.requires_grad for t in loop]
            inputs = [t for t in (xs, h, w) if t.requires_grad]
            if any(t.requires_grad for t in loop):
                torch.testing.assert_close(
                    gradients(scan, inputs), gradients(loop, inputs), rtol=1e-3, atol=1e-4
                )


def results_of(step, w, init, xs, algorithm, checkpoint):
    def of_w(state, x):
        return step(w, state, x)

    carry, first = (pytree.tree_map(torch.clone, init) for _ in range(2))  # leaves stay as they are
    ys = []
    for x in xs:
        carry, y = of_w(carry, x)
        ys.append(y)
    ys = pytree.tree_map(lambda *each: torch.stack(each), *ys)
    scan = bl.scan(of_w, first, xs, algorithm=algorithm, checkpoint=checkpoint)
    return pytree.tree_leaves((carry, ys)), pytree.tree_leaves(scan)


def gradients(results, inputs):
    loss = sum(t.sum() for t in results if t.requires_grad)
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]
