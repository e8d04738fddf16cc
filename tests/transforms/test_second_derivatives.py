"""Second derivatives of calls that depend on each other, and of sums: what comes in has no graph.

T steps, B samples, I inputs, H hidden.
"""

import copy
import re
from pathlib import Path

import pytest
import torch
from support.cases import relative_error
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning.ops import Operands, run_sampled_layer
from bppsa_lightning.ops._autograd import once_differentiable

pytestmark = pytest.mark.usefixtures("accelerate_everything")
F64 = torch.float64
T, B, I, H = 12, 2, 3, 4  # noqa: E741
LAYERS = {
    "RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM,
    "projected": lambda *sizes: nn.LSTM(*sizes, proj_size=3),
    "layers": lambda *sizes: nn.GRU(*sizes, num_layers=2, bidirectional=True),
}  # fmt: skip
OWN = [
    bl.nn.LSTM, bl.nn.LayerNormLSTM, bl.nn.LayerNormGRU, bl.nn.PeepholeLSTM, bl.nn.IndRNN,
    bl.nn.LiGRU, bl.nn.MinGRU,
]  # fmt: skip


def tensors(found):
    """Those in nested tuples."""
    return [found] if isinstance(found, torch.Tensor) else [t for f in found for t in tensors(f)]


def on_its_own_output(layer, x):
    y, first = layer(x)
    z, last = layer(y[..., : x.shape[-1]] * 0.5 + x)
    return tensors((y * z, first, last))


def with_its_own_state(layer, x):
    y, state = layer(x)
    return [y, *tensors(layer(x.flip(0), state))]


WAYS = [on_its_own_output, with_its_own_state]


def both(way, layer, steps=T):
    """The gradients of a sum, with a graph behind them, and those of a penalty on them."""
    torch.manual_seed(1)
    leaves = [torch.randn(steps, B, I, dtype=F64).requires_grad_()]
    if isinstance(layer, nn.Module):
        leaves += [p for p in layer.parameters() if p.requires_grad]
    outputs = way(layer, leaves[0])
    first = torch.autograd.grad(sum(t.sum() for t in outputs), leaves, create_graph=True)
    penalty = sum(g.square().sum() for g in first) + 0.1 * outputs[0].square().sum()
    return [g.detach() for g in first], torch.autograd.grad(penalty, leaves)


def assert_same(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert relative_error(a, b) < 1e-9


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("algorithm", ["auto", "linear", "chunked", "blelloch", "speculative"])
@pytest.mark.parametrize("kind", LAYERS)
def test_of_a_layer_that_is_called_twice(kind, algorithm, way):
    torch.manual_seed(0)
    stock = LAYERS[kind](I, H).to(F64)
    layer = copy.deepcopy(stock)
    bl.attach(layer, algorithm)
    assert_same(both(way, layer), both(way, stock))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", OWN)
def test_of_our_own_layers_that_are_called_twice(kind, way):
    """The gradients of kernels and those with a graph behind them are the same."""
    torch.manual_seed(0)
    layer = kind(I, H).to(F64)
    torch.manual_seed(1)
    leaves = [torch.randn(T, B, I, dtype=F64).requires_grad_(), *layer.parameters()]
    loss = sum(t.square().sum() for t in way(layer, leaves[0]))
    found = torch.autograd.grad(loss, leaves, create_graph=True)
    assert_same([found], [torch.autograd.grad(loss, leaves)])


def images(stack, x):
    y = stack(x.reshape(B, 2, 3, 6))
    return [stack(y.tanh() + x.reshape(y.shape))]


def pruned_stack(norm):
    torch.manual_seed(0)
    a, b = (nn.Conv2d(2, 2, 3, padding=1, bias=False) for _ in range(2))
    stack = nn.Sequential(a, norm, nn.ReLU(), b).to(F64)
    for convolution in (a, b):
        prune.l1_unstructured(convolution, "weight", 0.8)
    return stack


@pytest.mark.parametrize("norm", [lambda: nn.BatchNorm2d(2), nn.Identity], ids=["norm", "plain"])
@pytest.mark.parametrize("algorithm", ["auto", "linear", "blelloch"])
def test_of_pruned_layers_and_stacks_that_are_called_twice(algorithm, norm):
    stock, stack = pruned_stack(norm()), pruned_stack(norm())
    bl.attach(stack, algorithm)
    assert_same(both(images, stack), both(images, stock))


def scanned(algorithm):
    def way(cell, x):
        def step(h, x):
            h = cell(x, h)
            return h, h

        h, y = bl.scan(step, x.new_zeros(B, H), x, algorithm=algorithm)
        return [y, *bl.scan(step, h, x * 0.5 + y[..., :I], algorithm=algorithm)]

    return way


@pytest.mark.parametrize("steps", [5, 200])
@pytest.mark.parametrize("algorithm", ["auto", "linear", "chunked", "blelloch", "speculative"])
def test_of_scans_of_a_step(algorithm, steps):
    """Those of a scan of Jacobians are the loop's."""
    torch.manual_seed(0)
    cell = nn.GRUCell(I, H).to(F64)
    assert_same(both(scanned(algorithm), cell, steps), both(scanned("linear"), cell, steps))


def test_a_step_that_reads_a_weight_and_what_it_was_computed_from():
    """A gradient would count the ways through that weight twice: it is walked."""
    torch.manual_seed(0)
    v = torch.randn(H, H, dtype=F64).mul(0.3).requires_grad_()
    x = torch.randn(150, B, H, dtype=F64)

    def gradient(scan):
        w = v + v.t()

        def step(h, x):
            h = torch.tanh(x @ w + h @ v)
            return h, h

        return torch.autograd.grad(scan(step, x.new_zeros(B, H), x)[0].sum(), v)[0]

    def loop(step, h, xs):
        for x in xs:
            h, _ = step(h, x)
        return h, None

    assert relative_error(gradient(bl.scan), gradient(loop)) < 1e-12


# --- where there are none ------------------------------------------------------------------------


class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    @once_differentiable("a square")
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad, None


def test_who_differentiates_again_is_told_so():
    """torch's decorator says nothing here, as the gradient of a sum has no graph behind it."""
    a = torch.ones(3, requires_grad=True)
    (g,) = torch.autograd.grad(Squares.apply(a, 1).sum(), a, create_graph=True)
    assert torch.equal(g, 2 * torch.ones(3))
    with pytest.raises(NotImplementedError, match="a square has no second derivatives"):
        g.square().sum().backward()
    Squares.apply(a, 1).sum().backward()
    assert torch.equal(a.grad, 2 * torch.ones(3)) and not a.grad.requires_grad


def test_the_gradients_of_samples_have_none():
    torch.manual_seed(0)
    layer = nn.GRU(I, H).to(F64)
    x = torch.randn(T, B, I, dtype=F64).requires_grad_()
    operands = Operands(x, None, None, *layer.parameters(), None)
    y = run_sampled_layer("gru", operands, False, "auto", lambda found: None)[0]
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="the gradients of each sample has no second"):
        g.square().sum().backward()


def test_nobody_uses_torchs_own_decorator():
    """Of layers over ranks, above all."""
    for path in Path(bl.__file__).parent.rglob("*.py"):
        assert not re.search(r"function(\.| import )once_differentiable", path.read_text()), path
