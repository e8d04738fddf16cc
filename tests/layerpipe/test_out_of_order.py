"""The out-of-order backward: autograd's gradients, in another order."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from bppsa_lightning.layerpipe import out_of_order


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.two = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.two(self.norm(self.one(x)).relu())


def frozen(layers, number):
    layers[number].requires_grad_(False)
    return layers


CASES = {
    "mlp": lambda: (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (5, 6)),
    "in-place ReLU": lambda: (
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)),
        (5, 6),
    ),
    "convolutions": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(36, 3),
        ),
        (4, 3, 8, 8),
    ),
    "layer norm": lambda: (nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU()), (2, 5, 6)),
    "residual": lambda: (nn.Sequential(nn.Conv2d(3, 4, 1), Residual(4), nn.ReLU()), (2, 3, 5, 5)),
    "in-place on a view": lambda: (
        nn.Sequential(nn.Linear(6, 4), nn.Unflatten(1, (2, 2)), nn.ReLU(inplace=True)),
        (5, 6),
    ),
    "nested": lambda: (
        nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Linear(4, 2)),
        (5, 6),
    ),
    "first frozen": lambda: (
        frozen(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), 0),
        (5, 6),
    ),
    "last frozen": lambda: (
        frozen(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), 2),
        (5, 6),
    ),
    "unused weight": lambda: (nn.Sequential(nn.Linear(6, 4), Unused(4)), (5, 6)),
}  # fmt: skip


class Unused(nn.Linear):
    def __init__(self, size):
        super().__init__(size, size)

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(0)
    layers, shape = CASES[request.param]()
    return layers.double(), torch.randn(shape, dtype=torch.float64)


def stock(layers, x):
    layers = copy.deepcopy(layers)
    x = x.clone().requires_grad_()
    y = layers(x)
    grad = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    y.backward(grad)
    return [p.grad for p in layers.parameters()], x.grad, grad, layers.state_dict()


@pytest.mark.parametrize("way", ["falling", "rising", "second thread"])
def test_the_gradients_are_autograds(case, way):
    layers, x = case
    wanted, wanted_x, grad, state = stock(layers, x)
    x = x.requires_grad_()
    y, tape = out_of_order.forward(layers, x)
    if way == "second thread":
        with ThreadPoolExecutor(1) as helper:
            x_grad = out_of_order.backward(tape, grad, helper=helper)
    else:
        x_grad = out_of_order.backward(tape, grad, way)
    assert len(tape.layers) >= len(layers)
    found = [p.grad for p in layers.parameters()]
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(x_grad, wanted_x, rtol=1e-13, atol=1e-13)
    for name, value in layers.state_dict().items():  # running statistics move once
        torch.testing.assert_close(value, state[name])


def test_gradients_add_up_and_the_input_needs_none(case):
    layers, x = case
    wanted, _, grad, _ = stock(layers, x)
    for _ in range(2):
        y, tape = out_of_order.forward(layers, x)
        assert out_of_order.backward(tape, grad) is None
    for weight, once in zip(layers.parameters(), wanted, strict=True):
        if once is None:
            assert weight.grad is None
        else:
            torch.testing.assert_close(weight.grad, 2 * once, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ["falling", "rising"])
def test_all_activation_gradients_come_first(order):
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    seen = []
    y, tape = out_of_order.forward(layers, torch.randn(2, 4, requires_grad=True))
    for number, layer in enumerate(layers):
        layer.weight.register_hook(lambda grad, number=number: seen.append(f"G{number}"))
        edge = tape.edges[number]
        edge.node.register_prehook(lambda grads, number=number: seen.append(f"D{number}"))
    out_of_order.backward(tape, torch.ones_like(y), order)
    weights = [s for s in seen if s[0] == "G"]
    first = seen.index(weights[0])
    assert weights == (["G2", "G1", "G0"] if order == "falling" else ["G0", "G1", "G2"])
    assert {"D2", "D1"} <= set(seen[:first])


def test_nothing_to_train():
    layers = nn.Sequential(nn.Linear(2, 2), nn.Tanh()).requires_grad_(False)
    y, tape = out_of_order.forward(layers, torch.ones(1, 2))
    assert out_of_order.backward(tape, torch.ones_like(y)) is None
    with ThreadPoolExecutor(1) as helper:
        assert out_of_order.backward(tape, torch.ones_like(y), helper=helper) is None


def test_an_unknown_order():
    y, tape = out_of_order.forward(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2))
    with pytest.raises(ValueError, match="order: found 'random', wanted one of falling, rising"):
        out_of_order.backward(tape, torch.ones_like(y), "random")


def test_a_layer_that_returns_two_tensors():
    with pytest.raises(TypeError, match=r"layer 0 \(RNN\) returned tuple, wanted one tensor"):
        out_of_order.forward(nn.Sequential(nn.RNN(2, 2)), torch.ones(3, 1, 2))


def test_a_layer_that_overwrites_a_view():
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))  # of three axes, so a view
    y, tape = out_of_order.forward(layers, torch.randn(3, 2, 4))
    with pytest.raises(ValueError, match=r"input of layer 1: .*inplace=False"):
        out_of_order.backward(tape, torch.ones_like(y))


def test_a_weight_of_two_layers():
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"layer 2 \(Linear\) shares 'weight' with layer 0"):
        out_of_order.forward(nn.Sequential(layer, nn.Tanh(), layer), torch.ones(1, 2))
