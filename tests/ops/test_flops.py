"""FLOPs of the operators by `torch.utils.flop_counter`, beside those of PyTorch's own layers."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import bppsa_lightning as bl
from bppsa_lightning import jacobians
from bppsa_lightning.ops import flops


def counted(run, *arguments, **keywords):
    """FLOPs of a layer's forward and backward."""
    with FlopCounterMode(display=False) as counter:
        result = run(*arguments, **keywords)
        output = result[0] if isinstance(result, tuple) else result
        if output.requires_grad:
            output.sum().backward()
    return counter.get_total_flops()


def doubles(layer, *size, of_x=False):
    """The layer and an input in float64, for which PyTorch's LSTM is made of products, too."""
    return layer.double(), torch.randn(*size, dtype=torch.float64, requires_grad=of_x)


@pytest.mark.parametrize("of_x", [False, True])
@pytest.mark.parametrize("size", [(7, 3, 4), (7, 4), (1, 3, 4), (600, 1, 4)])
@pytest.mark.parametrize(
    "kind, options",
    [
        (nn.RNN, {}),
        (nn.GRU, {"num_layers": 2, "bidirectional": True}),
        (nn.LSTM, {}),
        (nn.LSTM, {"proj_size": 3}),
    ],
)
def test_an_attached_layer_counts_as_pytorchs_own(kind, options, size, of_x):
    layer, x = doubles(kind(4, 8, **options), *size, of_x=of_x)
    stock = counted(layer, x)
    bl.attach(layer)
    assert counted(layer, x) == stock > 0


def test_the_first_state_counts_where_its_gradient_is_wanted():
    layer, x = doubles(nn.GRU(4, 8), 7, 3, 4)
    h0 = torch.zeros(1, 3, 8, dtype=torch.float64, requires_grad=True)
    stock = counted(layer, x, h0)
    bl.attach(layer)
    assert counted(layer, x, h0) == stock == counted(layer, x) + 2 * 3 * 24 * 8


def test_frozen_weights_and_evaluation_count_less():
    layer, x = doubles(nn.GRU(4, 8), 7, 3, 4)
    bl.attach(layer)
    with torch.no_grad():
        assert counted(layer, x) == 2 * 7 * 3 * 24 * (4 + 8)
    whole = counted(layer, x)
    layer.weight_hh_l0.requires_grad_(False)
    assert counted(layer, x) == whole - 2 * 7 * 3 * 24 * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inputs", [4, 600])  # the operator takes the first itself, where it may
@pytest.mark.parametrize(
    "kind, like, gates",
    [
        ("LayerNormLSTM", nn.LSTM, 4),
        ("LayerNormGRU", nn.GRU, 3),
        ("PeepholeLSTM", nn.LSTM, 4),
        ("LiGRU", nn.GRU, 2),
    ],
)
def test_other_cells_count_their_products(kind, like, gates, inputs, dtype):
    stock, x = doubles(like(inputs, 8), 7, 3, inputs, of_x=True)
    layer = getattr(bl.nn, kind)(inputs, 8).to(dtype)
    wanted = counted(stock, x) * gates // (4 if like is nn.LSTM else 3)
    assert counted(layer, x.detach().to(dtype).requires_grad_()) == wanted


def test_scans_of_jacobians_count_a_product_a_step():
    assert counted(bl.ops.reverse_scan, torch.randn(5, 2, 3, 3), torch.randn(6, 2, 3)) == 180


def test_surviving_weights_count_what_they_multiply():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    layer = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    keep = torch.zeros_like(layer.weight, dtype=torch.bool)
    keep.view(-1)[::4] = True
    dense = counted(layer, x)
    pattern = bl.ops.SparsePattern.of(keep, padding=1)
    sparse = counted(bl.ops.sparse_conv2d, x, layer.weight, pattern)
    assert sparse * 4 == dense == 3 * 2 * 108 * 2 * 64


def test_products_of_sparse_jacobians_count_their_plans():
    a, b = (jacobians.linear(torch.randn(m, k)) for m, k in ((5, 4), (6, 5)))
    plan = jacobians.ProductPlan.of(*map(jacobians.Pattern.of, (a, b)))
    values = torch.randn(3, a.values().numel()), b.values()
    assert counted(plan.multiply, *values) == 3 * plan.flops == 3 * 2 * 4 * 5 * 6


def test_formulas_are_registered_once():
    """PyTorch refuses a second one, which a package that is imported again would bring."""
    registered = dict(torch.utils.flop_counter.flop_registry)
    flops.register(torch.utils.flop_counter)
    assert torch.utils.flop_counter.flop_registry == registered
    assert torch.ops.bppsa.recurrent in registered
