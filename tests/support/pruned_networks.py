"""A small pruned network, stock and attached, and all that one forward and backward gives."""

import torch
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning import pruned

B = 16


def network(norm=False):
    """Convolutions, poolings, and a linear head; everything that a stack of layers may hold."""
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(6)] if norm else []
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding="same", bias=not norm),  # a norm makes its gradient 0
        *norms,
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2, bias=False),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(3, 1, 1),
        nn.Conv2d(8, 8, (1, 2), padding=(0, 1), dilation=2),
        nn.AdaptiveAvgPool2d((2, 1)),
        nn.Flatten(),
        nn.Linear(16, 5),
    ).double()


def pruned_network(norm=False, amount=0.7):
    model = network(norm)
    for module in model:
        if isinstance(module, nn.Conv2d | nn.Linear):
            prune.random_unstructured(module, "weight", amount)
    return model


def twins(**settings):
    """The same pruned network twice, the second attached."""
    stock, ours = pruned_network(**settings), pruned_network(**settings)
    ours.load_state_dict(stock.state_dict())
    assert bl.attach(ours) == []
    return stock, ours


def image(dtype=torch.float64):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(B, 3, 12, 12, generator=generator, dtype=torch.float64).to(dtype)


def results(model, x):
    x = x.detach().requires_grad_()
    model.zero_grad()
    output = model(x)
    output.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"output": output.detach(), "x": x.grad} | gradients


def assert_all_sparse(model, calls=1):
    pruned_layers = pruned.sparse_layers(model)
    assert pruned_layers
    assert {(p.calls, p.fallback_calls, p.reason) for p in pruned_layers.values()} == {
        (calls, 0, None)
    }
