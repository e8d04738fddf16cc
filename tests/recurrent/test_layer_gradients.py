"""An attached nn.RNN gives PyTorch's outputs and gradients, whatever the size, layout and dynamics.

T steps, B batch, H state, I input.
"""

import pytest
import torch
from support.helpers import B, H, I, T, assert_close
from support.rnn_twins import (
    ALGORITHMS,
    EXACT,
    LAYOUTS,
    LOSSES,
    assert_same_as_stock,
    assert_scanned,
    f32,
    shape_of,
    state,
    tensor,
    twins,
)

import bppsa_lightning as bl

pytestmark = pytest.mark.usefixtures("accelerate_everything")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("given", [False, True], ids=["no h0", "h0"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_gradients_are_exact(nonlinearity, layout, bias, given, loss):
    settings = {
        "nonlinearity": nonlinearity,
        "bias": bias,
        "batch_first": layout == "batch first",
    }
    for dtype, tolerance in ((torch.float64, EXACT), (torch.float32, 2e-5)):
        pair = twins(dtype=dtype, **settings)
        x = tensor(*shape_of(layout, I), dtype=dtype)
        h0 = state(layout, dtype=dtype) if given else None
        assert_same_as_stock(*pair, x, h0, loss=loss, tolerance=tolerance)
        assert pair[0].weight_hh_l0.grad.any(), "a gradient of zeros compares nothing"


def test_unbatched_input_ignores_batch_first():
    assert_same_as_stock(*twins(batch_first=True), tensor(T, I), state("unbatched"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("steps", [1, 2, 7, 33, 200])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_every_algorithm_gives_the_same_gradients(nonlinearity, steps, algorithm):
    pair = twins(nonlinearity=nonlinearity, algorithm=algorithm)
    with bl.ops.scan_log() as log:
        assert_same_as_stock(*pair, tensor(steps, B, I), state())
    [(cell, shape, plan)] = log.scans
    assert (cell, shape) == (f"RNN-{nonlinearity}", (steps, B, H))
    assert algorithm in ("auto", plan.algorithm)


@pytest.mark.parametrize(
    ("steps", "batch", "features", "hidden"),
    [
        (T, 0, I, H),
        (T, 1, I, H),
        (1, B, I, H),
        (T, B, I, 1),
        (T, B, 1, H),
        (1, 1, 1, 1),
        (2, 3, 40, 33),
    ],
)
@pytest.mark.parametrize("layout", ["steps first", "batch first"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_small_and_odd_sizes(algorithm, layout, steps, batch, features, hidden):
    pair = twins(features, hidden, algorithm=algorithm, batch_first=layout == "batch first")
    x = tensor(*shape_of(layout, features, steps, batch))
    assert_same_as_stock(*pair, x, state(batch=batch, hidden=hidden))


STRIDED = {
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "features apart": lambda t: t.repeat_interleave(2, dim=-1)[..., ::2],
    "features first": lambda t: t.movedim(-1, 0).contiguous().movedim(0, -1),
    "a slice": lambda t: torch.cat([t, t], dim=-1)[..., : t.shape[-1]],
    "every other step": lambda t: t.repeat_interleave(2, dim=0)[::2],
    "expanded": lambda t: t[:, :1].expand_as(t),
}


@pytest.mark.parametrize("loss", ["both", "expanded"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layout", STRIDED)
def test_strided_inputs(layout, batch_first, loss):
    stock, scanned = twins(batch_first=batch_first)
    x = STRIDED[layout](tensor(B, T, I) if batch_first else tensor(T, B, I))
    h0 = STRIDED[layout](state())

    def run(rnn):
        output, hn = rnn(x, h0)
        LOSSES[loss](output, hn, 1 if batch_first else 0).backward()
        return {"output": output.detach(), "x": x.grad, "h0": h0.grad} | {
            name: parameter.grad for name, parameter in rnn.named_parameters()
        }

    for leaf in (x, h0):
        leaf.requires_grad_()
    wanted = run(stock)
    x.grad = h0.grad = None
    assert_close(run(scanned), wanted, EXACT)
    assert_scanned(scanned)


@pytest.mark.parametrize("step", [slice(None, None, 2), slice(None)], ids=["strided", "dense"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_strided_direct_gradients(batch_first, step):
    """What comes after the layer decides the strides of the gradient that it gets."""

    def run(rnn):
        output, hn = rnn(x)
        head = output.permute(2, 0, 1)[step].exp()
        (head.sum() + (output[::2, 1:] * hn.sum()).sum()).backward()
        return {name: parameter.grad for name, parameter in rnn.named_parameters()}

    x = tensor(T, B, I)
    stock, scanned = twins(batch_first=batch_first)
    assert_close(run(scanned), run(stock), EXACT)
    assert_scanned(scanned)


# Recurrent weights (H, H) of about the gain asked for, and the scale of what drives the state.
EXPLODING = {
    "at rest": ("tanh", 3, 0.0),  # every slope is 1: the Jacobian is W itself
    "at rest, gain 8": ("tanh", 8, 0.0),  # leaves the range within 64 steps
    "chaos": ("tanh", 3, 1e-3),
    "half dead": ("relu", 3, 1e-3),
    "half dead, gain 8": ("relu", 8, 1e-3),  # the states themselves overflow
}


@pytest.mark.parametrize("loss", ["early", "late", "all"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dynamics", EXPLODING)
def test_exploding_dynamics_stay_finite_where_pytorch_does(dynamics, algorithm, loss):
    """Over 300 steps products of Jacobians leave float32's range; gradients need not.

    An early loss has no gradient in later steps, where a product's inf * 0 would make a NaN.
    """
    nonlinearity, gain, drive = EXPLODING[dynamics]
    steps, hidden = 300, 16
    direct = torch.zeros(steps, B, hidden)
    direct[{"early": slice(20), "late": slice(-20, None), "all": slice(None)}[loss]] = 1e-3
    stock, scanned = twins(
        I, hidden, bias=False, nonlinearity=nonlinearity, dtype=torch.float32, algorithm=algorithm
    )
    for rnn in (stock, scanned):
        w_hh = gain * tensor(hidden, hidden, seed=5).float() / hidden**0.5
        rnn.weight_hh_l0.data.copy_(w_hh)

    def run(rnn):
        leaves = {"x": drive * f32(steps, B, I), "h0": drive * f32(1, B, hidden)}
        leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
        leaves |= dict(rnn.named_parameters())
        output, _ = rnn(leaves["x"], leaves["h0"])
        gradients = torch.autograd.grad(output, list(leaves.values()), direct)
        return dict(zip(leaves, gradients, strict=True))

    found, wanted = run(scanned), run(stock)
    assert_scanned(scanned)
    for name, want in wanted.items():
        bad = want.isfinite() & ~found[name].isfinite()
        assert not bad.any(), f"{name}: {int(bad.sum())} of {bad.numel()} are not finite"
    if loss == "early":
        assert wanted["x"].isfinite().all() and wanted["x"].any()
        assert_close({"x": found["x"]}, {"x": wanted["x"]}, 1e-3)
