"""ReLU and pooling in the pass of the pruned layer before them, unless somebody looks between."""

import copy

import pytest
import torch
from support.helpers import assert_close
from support.pruned_networks import assert_all_sparse, image, results, twins
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning import pruned

pytestmark = pytest.mark.usefixtures("every_layer_is_sparse")


def through_operators(monkeypatch):
    """(ReLU, pooling) of each sparse layer's operator from now on."""
    seen, run = [], pruned.layer.ops.run_sparse_layer

    def watched(x, weight, pattern, bias, relu=False, pool=False):
        seen.append((relu, pool))
        return run(x, weight, pattern, bias, relu, pool)

    monkeypatch.setattr(pruned.layer.ops, "run_sparse_layer", watched)
    return seen


FUSED = [(True, True), (True, False), (False, False), (False, False)]


def test_relu_and_pooling_run_in_the_pass_of_the_layer_before(monkeypatch):
    stock, ours = twins()
    seen = through_operators(monkeypatch)
    assert_close(results(ours, image()), results(stock, image()), 1e-12)
    assert seen == FUSED
    assert_all_sparse(ours)
    seen.clear()  # too few samples for the pooling's vectors; no samples' dimension at all
    for x in (image()[:2], image()[:0]):
        assert_close({"y": ours[:3](x).detach()}, {"y": stock[:3](x).detach()}, 1e-12)
        assert_close({"y": ours(x).detach()}, {"y": stock(x).detach()}, 1e-12)
    assert (True, True) not in seen and (True, False) in seen


WATCHERS = {
    "forward hook": lambda module, hook: module.register_forward_hook(hook),
    "forward pre-hook": lambda module, hook: module.register_forward_pre_hook(hook),
    "backward hook": lambda module, hook: module.register_full_backward_hook(hook),
    "global hook": lambda _, hook: nn.modules.module.register_module_forward_hook(hook),
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("watcher", WATCHERS)
def test_who_looks_at_what_is_between_sees_it(watcher, place, monkeypatch):
    stock, ours = twins()
    shapes = {}
    for model in (stock, ours):
        calls = shapes[model] = []
        hook = lambda _module, x, *y, calls=calls: calls.append(  # noqa: E731
            [t.shape for some in (x, *y) for t in some if isinstance(t, torch.Tensor)]
        )
        handle = WATCHERS[watcher](model[place], hook)
        seen = through_operators(monkeypatch)
        results(model, image())
        handle.remove()
    assert len(shapes[ours]) == len(shapes[stock]) > 0
    assert shapes[ours] == shapes[stock]
    assert seen[0] == ((True, False) if place == 2 and "global" not in watcher else (False, False))
    seen.clear()
    results(ours, image())
    assert seen == FUSED


def halved(stock, ours):
    """Prunes both alike, and attaches the second."""
    for model in (stock, ours):
        torch.manual_seed(1)
        for module in model:
            if isinstance(module, nn.Conv2d | nn.Linear):
                prune.random_unstructured(module, "weight", 0.5)
    ours.load_state_dict(stock.state_dict())
    bl.attach(ours)


OTHERS = {
    "another window": [nn.ReLU(), nn.MaxPool2d(3)],
    "overlapping": [nn.ReLU(), nn.MaxPool2d(2, 1)],
    "rounded up": [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)],
    "padded": [nn.ReLU(), nn.MaxPool2d(2, padding=1)],
    "pooled first": [nn.MaxPool2d((2, 2), (2, 2)), nn.ReLU(inplace=True)],
    "twice": [nn.MaxPool2d(2), nn.MaxPool2d(2)],
    "pooled only": [nn.MaxPool2d(2)],
    "a norm between": [nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)],
    "nested": [nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_neighbours(name, monkeypatch):
    wanted = {
        "another window": (True, False), "overlapping": (True, False),
        "rounded up": (True, False), "padded": (True, False), "pooled first": (True, True),
        "twice": (False, True), "pooled only": (False, True),
    }.get(name, (False, False))  # fmt: skip
    stock, ours = (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, bias="norm" not in name), *copy.deepcopy(OTHERS[name])
        ).double()
        for _ in "ab"
    )
    halved(stock, ours)
    seen = through_operators(monkeypatch)
    assert_close(results(ours, image()), results(stock, image()), 1e-12)
    assert seen == [wanted]


def test_a_linear_layer_with_its_relu(monkeypatch):
    stock, ours = (
        nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU()).double() for _ in "ab"
    )
    halved(stock, ours)
    seen = through_operators(monkeypatch)
    for shape in ((9,), (4, 9), (2, 3, 9)):
        x = torch.randn(shape, dtype=torch.float64)
        assert_close(results(ours, x), results(stock, x), 1e-12)
    assert set(seen) == {(True, False)} and len(seen) == 6
    bl.detach(ours)
    assert "forward" not in ours.__dict__


@pytest.mark.parametrize("pool", [False, True])
def test_an_empty_batch_through_a_layer_and_what_follows_in_the_same_pass(pool):
    layer = nn.Conv2d(16, 64, 3, padding=1)
    prune.l1_unstructured(layer, "weight", 0.99)
    model = nn.Sequential(layer, nn.ReLU(), *([nn.MaxPool2d(2)] if pool else []))
    bl.attach(model)
    model(torch.randn(16, 16, 32, 32)).sum().backward()
    assert " sparse " in bl.explain(model) and "in the same pass" in bl.explain(model)
    x = torch.randn(0, 16, 32, 32, requires_grad=True)
    layer.weight_orig.grad = None
    model(x).sum().backward()
    assert x.grad.shape == x.shape
    assert not layer.weight_orig.grad.any() and not layer.bias.grad.isnan().any()
