"""A default device of torch's is for tensors that users make: ours lie beside their inputs."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence

import bppsa_lightning as bl
from bppsa_lightning.layerpipe.assignment import assign
from bppsa_lightning.layerpipe.costs import LayerCost


def numbers(*shape):
    return torch.linspace(-1, 1, torch.Size(shape).numel(), device="cpu").sin().view(shape)


def gradients(module, x, call=lambda module, x: module(x)[0]):
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = call(module, x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]


def recurrent(cell, algorithm):
    layer = getattr(nn, cell)(3, 8)
    with torch.no_grad():  # forgets slowly, which takes some looking
        layer.weight_ih_l0.mul_(0.01)
        layer.weight_hh_l0.copy_(0.9 * torch.eye(8).repeat(len(layer.weight_hh_l0) // 8, 1))
    bl.attach(layer, algorithm)
    return lambda: gradients(layer, numbers(2000, 1, 3))


def packed():
    layer = nn.GRU(3, 8, 2, bidirectional=True)
    bl.attach(layer, "linear")
    lengths = torch.tensor([20, 11, 3])

    def call(layer, x):
        return layer(pack_padded_sequence(x, lengths))[0].data

    return lambda: gradients(layer, numbers(20, 3, 3), call)


def stack():
    layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2))
    bl.attach(layers, "blelloch")
    return lambda: gradients(layers, numbers(2, 2, 10, 10), nn.Module.__call__)


def pruned():
    layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3))
    for layer in (layers[0], layers[2]):
        prune.l1_unstructured(layer, "weight", 0.9)
    bl.attach(layers)
    return lambda: gradients(layers, numbers(8, 2, 10, 10), nn.Module.__call__)


def scan(steps, algorithm):
    cell = nn.GRUCell(3, 8)

    def step(h, x):
        h = cell(x, h).sin()
        return h, h

    def call(_, x):
        return bl.scan(step, torch.zeros(1, 8, device="cpu"), x, algorithm=algorithm)[1]

    return lambda: gradients(cell, numbers(steps, 1, 3), call)


def noisy(kind):
    layer = kind(3, 8, recurrent_dropout=0.3, zoneout=0.2)
    reset = numbers(30, 2) > 0.8

    def call(layer, x):
        torch.manual_seed(0)
        return layer(x, reset=reset)[0]

    return lambda: gradients(layer, numbers(30, 2, 3), call)


CASES = {
    **{
        f"{c} {a}": (recurrent, c, a)
        for c in ("RNN", "GRU", "LSTM")
        for a in ("speculative", "auto")
    },
    "packed": (packed,),
    "stack": (stack,),
    "pruned": (pruned,),
    **{f"scan {a}": (scan, 600, a) for a in ("speculative", "auto", "blelloch")},
    **{k.__name__: (noisy, k) for k in (bl.nn.GRU, bl.nn.LayerNormLSTM, bl.nn.IndRNN)},
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same(case, every_layer_is_sparse):
    make, *arguments = CASES[case]

    def run():
        """A second call of a new layer, which knows nothing yet."""
        torch.manual_seed(0)
        with torch.device("cpu"):
            call = make(*arguments)
        call()
        return call()

    wanted = run()
    with torch.device("meta"):
        found = run()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_assignments_are_the_same():
    costs = [LayerCost(str(n), n, n + 2, n + 1, 4, 4, 4) for n in (1.0, 3.0, 2.0)]
    with torch.device("meta"):
        found = assign(costs, 2)
    assert found == assign(costs, 2)
