"""Chains over depth: gradients against autograd; what is left alone; training features."""

import copy

import pytest
import torch
from support.cases import DEVICES, relative_error
from support.stacks import (
    ALGORITHMS,
    MODELS,
    VGG,
    assert_same,
    conv1d,
    eval_dropout,
    gradients,
    lenet,
    pair,
)
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning.depth.stack import FeedforwardChain


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("algorithm, levels", ALGORITHMS)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_autograd(name, algorithm, levels, device):
    make, size = MODELS[name]
    stock, ours, chains = pair(make, algorithm, levels, device=device)
    assert chains and all(isinstance(c, FeedforwardChain) for c in chains)
    x = torch.randn(size, dtype=torch.float64).to(device)
    for _ in range(2):  # plans made, plans known
        assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
    assert [chain.calls for chain in chains] == [2] * len(chains)
    assert not any(chain.fallback_calls for chain in chains)
    for chain in chains:
        assert (chain.plan.algorithm, bool(chain.scans)) == (algorithm, algorithm == "blelloch")


@pytest.mark.parametrize("algorithm, levels", ALGORITHMS)
@pytest.mark.parametrize("name", ["lenet", "vgg"])
def test_float32_errs_at_most_twice_as_much_as_pytorch(name, algorithm, levels):
    """In the median over inputs and parameters, of both norms: one error alone is chance."""
    make, size = MODELS[name]
    stock, ours, _ = pair(lambda: eval_dropout(make()), algorithm, levels, torch.float32)
    ratios = {float("inf"): [], 2: []}
    for seed in range(3):
        x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        exact = gradients(copy.deepcopy(stock).double(), x.double())
        found, plain = gradients(ours, x), gradients(stock, x)
        for key in exact:
            for norm in ratios:
                ours_error, stock_error = (
                    float((g[key].double() - exact[key]).flatten().norm(norm))
                    for g in (found, plain)
                )
                ratios[norm].append(ours_error / max(stock_error, 1e-300))
    assert all(sorted(found)[len(found) // 2] <= 2 for found in ratios.values())


@pytest.mark.slow
@pytest.mark.parametrize("kept, algorithm", [(0.03, "blelloch"), (1.0, "linear")])
def test_vgg11_in_full_width(kept, algorithm):
    def make():
        model = VGG(1.0)
        for module in model.features if kept < 1 else ():
            if isinstance(module, nn.Conv2d):
                prune.l1_unstructured(module, "weight", amount=1 - kept)
        return model

    stock, ours, chains = pair(make, algorithm, 2)
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
    features = chains[0]
    assert features.shape[0] == 21 and features.calls == 1  # one run, pruned or not
    if algorithm == "blelloch":
        (scan,) = features.scans.values()
        assert sum(plan is not None for *_, plan, _ in scan.nodes()) == 15


def test_an_input_without_gradient_spares_the_products_of_the_first_layer():
    stock, ours, (chain,) = pair(lenet, "blelloch", 2)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    for model in (stock, ours):
        model(x).square().sum().backward()
    assert_same(
        {name: p.grad for name, p in ours.named_parameters()},
        {name: p.grad for name, p in stock.named_parameters()},
        1e-10,
    )
    ours(x.requires_grad_()).sum().backward()
    without, whole = chain.scans.values()
    assert list(whole.patterns[1:]) == list(without.patterns)


def test_products_beyond_the_budget_are_walked_and_explained():
    stock, ours, (chain,) = pair(lenet, "blelloch", 3, budget=200_000)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
    text = bl.explain(ours)
    assert "walked: budget" in text and "FLOPs" in text and "blelloch" in text


def test_auto_leaves_stacks_to_pytorch_and_says_so():
    model = VGG()
    assert bl.attach(model) == []
    assert all("forward" not in m.__dict__ for m in model.modules())
    assert "on request: algorithm={'features': 'blelloch'}" in bl.explain(model)
    chains = bl.attach(model, {"features": "blelloch"})
    assert [c.name for c in chains] == ["features"]
    assert bl.attach(model) == [] and "forward" not in model.features.__dict__


def test_runs_and_what_stands_between_them():
    """Batch norm in training mode couples samples: it runs as it is, between two chains."""
    stock, ours, chains = pair(lambda: VGG(batch_norm=True), "blelloch", 2)
    x = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    for training in (True, False):
        stock.train(training), ours.train(training)
        assert_same(gradients(ours, x), gradients(stock, x), 1e-9)
        for a, b in zip(stock.buffers(), ours.buffers()):
            torch.testing.assert_close(a, b)
    assert all(chain.calls == 2 for chain in chains)
    alone = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3))
    assert bl.attach(alone, "linear") == []
    assert "couple its samples" in bl.explain(alone)


def test_residual_blocks_are_left_alone():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            return x + self.conv(x).relu()

    stock, ours, chains = pair(
        lambda: nn.Sequential(Block(), nn.Conv2d(3, 3, 1), nn.ReLU(), Block(), nn.Flatten()),
        "linear", 0,
    )  # fmt: skip
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-12)
    assert len(chains) == 1
    only = nn.Sequential(Block(), Block())
    assert bl.attach(only, "linear") == [] and "Block: no Jacobian for it" in bl.explain(only)


def test_frozen_and_shared_parameters_and_inputs_without_gradient():
    for algorithm, levels in ALGORITHMS:
        stock, ours, _ = pair(lenet, algorithm, levels)
        for model in (stock, ours):
            model[0].weight.requires_grad_(False)
            model[7].bias.requires_grad_(False)
        x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
        assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
        for model in (stock, ours):
            model.zero_grad()
            model(x).square().sum().backward()
        pairs = zip(stock.parameters(), ours.parameters())
        for a, b in pairs:
            assert (a.grad is None) == (b.grad is None)
            assert a.grad is None or relative_error(b.grad, a.grad) < 1e-10
    layer = nn.Linear(4, 4).double()
    stock = nn.Sequential(layer, nn.Tanh(), layer)
    ours = copy.deepcopy(stock)
    bl.attach(ours, "blelloch")
    x = torch.randn(3, 4, dtype=torch.float64)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("algorithm, levels", ALGORITHMS)
def test_pruned_layers_keep_their_masks_and_patterns_follow_them(algorithm, levels, device):
    stock, ours, (chain, *_) = pair(lenet, algorithm, levels, device=device)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64).to(device)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
    dense = dict(chain.scans)
    for model in (stock, ours):
        for i in (0, 3, 7, 9):
            prune.l1_unstructured(model[i], "weight", amount=0.9)
    found = gradients(ours, x)
    assert_same(found, gradients(stock, x), 1e-10)
    assert bool((found["7.weight_orig"][ours[7].weight_mask == 0] == 0).all())
    for key, scan in chain.scans.items():
        assert scan.patterns[0].nnz < dense[key].patterns[0].nnz / 5
    for model in (stock, ours):  # weights come back to life
        for i in (0, 3, 7, 9):
            prune.remove(model[i], "weight")
            model[i].weight.data.add_(0.01)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-10)


def test_plans_serve_smaller_batches_and_are_not_hoarded():
    stock, ours, (chain,) = pair(conv1d, "blelloch", 2)
    scans = []
    for B in (3, 2, 3, 5):
        x = torch.randn(B, 3, 16, dtype=torch.float64)
        assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
        (scan,) = chain.scans.values()
        scans.append(scan)
    assert scans[0] is scans[1] is scans[2] is not scans[3]
    convolutions = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Tanh())
    (chain,) = bl.attach(convolutions, "blelloch")
    for length in range(5, 45):
        convolutions(torch.randn(1, 3, length)).sum().backward()
    assert 0 < len(chain.scans) <= 16 and len(chain._layers) <= 34
