"""Batch norm in training between sparse layers: PyTorch's results, gradients and statistics."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.cases import relative_error
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning.ops import batch_norm
from bppsa_lightning.pruned import LayoutLayer


def randn(*size, dtype=torch.float64, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def stock(x, weight, bias, eps, relu):
    y = F.batch_norm(x.unsqueeze(0), None, None, weight, bias, training=True, eps=eps)[0]
    return y.relu() if relu else y


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("size", [(1, 2), (3, 7), (5, 64), (4, 1000), (2, 20011)])
def test_operator_is_pytorch_s(size, relu, affine):
    x = randn(*size).mul_(3).add_(5).requires_grad_()
    weight, bias = (randn(size[0], seed=s).requires_grad_() if affine else None for s in (1, 2))
    inputs = [t for t in (x, weight, bias) if t is not None]
    wanted = stock(x, weight, bias, 1e-3, relu)
    found, mean, var = batch_norm(x, weight, bias, 1e-3, relu)
    assert relative_error(found, wanted) < 1e-13
    assert relative_error(mean, x.mean(1)) < 1e-14
    assert relative_error(var, x.var(1, correction=0)) < 1e-13
    assert not mean.requires_grad and not var.requires_grad
    grad = randn(*size, seed=3)
    pairs = [torch.autograd.grad(y, inputs, grad) for y in (found, wanted)]
    for have, want in zip(*pairs, strict=True):
        assert float((have - want).abs().max()) < 1e-11 * max(1, float(want.abs().max()))


def test_float32_errs_no_more_than_pytorch_far_from_zero():
    """Where mean² is far above the variance, sums of squares lose all digits."""
    x = randn(4, 50_000).add_(1000)
    exact = stock(x, None, None, 1e-5, False)
    single = x.float()
    (found, _, var), plain = batch_norm(single, None, None), stock(single, None, None, 1e-5, False)
    assert relative_error(found, exact) < 2 * relative_error(plain, exact) + 1e-6
    assert relative_error(var, x.var(1, correction=0)) < 1e-4


def test_a_constant_channel_has_no_variance():
    """Where all that is left of a variance is rounding, it is not below zero."""
    x = torch.tensor([1148366.875, 72219.914, 3e-5]).repeat_interleave(192).view(3, 192)
    y, mean, var = batch_norm(x, None, None)
    assert (var >= 0).all() and y.isfinite().all() and relative_error(mean, x[:, 0]) < 1e-6


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none(bad):
    x = randn(2, 40)
    x[0, 3] = bad
    found = batch_norm(x, None, None, relu=True)[0]
    assert bool(found[0].isnan().all()) and bool(found[1].isfinite().all())


def test_operator_passes_opcheck_and_gradients_of_gradients():
    arguments = (randn(3, 9).requires_grad_(), randn(3, seed=1).requires_grad_(), None, 1e-5, True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.bppsa.batch_norm.default, arguments, test_utils=checks)
    x, weight, bias = randn(2, 6), randn(2, seed=1), randn(2, seed=2)
    for relu in (False, True):
        assert torch.autograd.gradgradcheck(
            lambda *inputs, relu=relu: batch_norm(*inputs, 1e-5, relu)[0],
            [t.requires_grad_() for t in (x, weight, bias)],
        )


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: batch_norm(randn(2, 3, dtype=torch.bfloat16), None, None), TypeError, "bfloat16"),
        (lambda: batch_norm(randn(2, 3, 4), None, None), ValueError, r"shape \(2, 3, 4\)"),
        (lambda: batch_norm(randn(2, 0), None, None), ValueError, r"shape \(2, 0\)"),
        (lambda: batch_norm(randn(4, 3).t(), None, None), ValueError, "contiguous"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


NORMS = {
    "as it comes": {},
    "cumulative": {"momentum": None},
    "frozen": {"momentum": 0.0},
    "not tracked": {"track_running_stats": False},
    "not affine": {"affine": False, "eps": 0.1},
    "masked": {"masked": True},
}


def network(inplace, masked=False, **settings):
    torch.manual_seed(0)
    layers = []
    for C, O in ((3, 6), (6, 5)):
        layers += [nn.Conv2d(C, O, 3, bias=False), nn.BatchNorm2d(O, **settings)]
        layers += [nn.ReLU(inplace), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(5 * 3 * 3, 4)).double()
    for module in model:
        if isinstance(module, nn.Conv2d):
            prune.l1_unstructured(module, "weight", 0.5)
        if masked and isinstance(module, nn.BatchNorm2d):
            prune.random_unstructured(module, "weight", 2)
            prune.random_unstructured(module, "bias", 3)
    return model


def step(model, x):
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    if y.requires_grad:
        y.pow(3).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **grads, **dict(model.named_buffers())}


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        have = found[name]
        assert have.dtype == want.dtype, name
        assert relative_error(have.double(), want.double()) < 1e-10, name


def used(monkeypatch):
    """With a ReLU or without: the calls of the operator from now on."""
    from bppsa_lightning.pruned import norm

    seen = []
    monkeypatch.setattr(norm, "batch_norm", lambda *a: seen.append(a[-1]) or batch_norm(*a))
    return seen


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_a_network_trains_as_stock(name, inplace, every_layer_is_sparse, monkeypatch):
    wanted, found = network(inplace, **NORMS[name]), network(inplace, **NORMS[name])
    bl.attach(found)
    seen = used(monkeypatch)
    for seed in range(3):
        x = randn(16, 3, 18, 18, seed=seed)
        assert_same(step(found, x), step(wanted, x))
    assert seen == [True] * 6
    for model in (found, wanted):
        model.eval()
    assert_same(step(found, x), step(wanted, x))
    tracked = NORMS[name].get("track_running_stats", True)
    assert len(seen) == (6 if tracked else 8)  # in evaluation too, by the batch's own
    with torch.no_grad():
        assert relative_error(found.train()(x), wanted.train()(x)) < 1e-10
    for a, b in zip(found.buffers(), wanted.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_hooks_see_what_is_between(every_layer_is_sparse, monkeypatch):
    wanted, found = network(False), network(False)
    bl.attach(found)
    seen, outputs = used(monkeypatch), []
    for model in (wanted, found):
        model[1].register_forward_hook(lambda m, i, o: outputs.append(o.detach()))
        model[6].register_forward_hook(lambda m, i, o: o * 2)
    x = randn(16, 3, 18, 18)
    assert_same(step(found, x), step(wanted, x))
    assert seen == [False, False] and relative_error(outputs[1], outputs[0]) < 1e-12


def test_other_calls_are_pytorch_s(monkeypatch):
    seen = used(monkeypatch)
    ours = nn.BatchNorm2d(4)
    plain = copy.deepcopy(ours)
    LayoutLayer("", ours).attach()
    innermost = randn(4, 3, 3, 8, dtype=torch.float32).permute(3, 0, 1, 2)
    for x in (innermost.contiguous(), innermost.bfloat16(), innermost.double()):
        try:
            wanted = plain(x)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                ours(x)
            continue
        torch.testing.assert_close(ours(x), wanted)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ours(randn(1, 4, 1, 1, dtype=torch.float32))
    assert not seen
    ours(innermost)
    assert seen == [False]
