"""Weights of `bl.nn` layers that are not what a call wants: elsewhere, of two dtypes, computed."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import bppsa_lightning as bl

CELLS = ["RNN", "GRU", "LSTM", "PeepholeLSTM", "LayerNormLSTM", "LayerNormGRU", "IndRNN", "LiGRU"]
every_cell = pytest.mark.parametrize("cell", [*CELLS, "MinGRU"])
X = torch.ones(5, 2, 3)


def weights_of(cell):
    return [name for name, _ in getattr(bl.nn, cell)(3, 4).named_parameters()]


@every_cell
@pytest.mark.parametrize("options", [{}, {"zoneout": 0.1}])
def test_a_weight_on_meta_is_an_error_in_the_forward(cell, options):
    for name in weights_of(cell):
        layer = getattr(bl.nn, cell)(3, 4, **options)
        setattr(layer, name, nn.Parameter(getattr(layer, name).to("meta")))
        for grad in (False, True):
            with torch.set_grad_enabled(grad), pytest.raises(RuntimeError, match="meta"):
                layer(X)


def test_operators_do_not_mix_real_and_meta_tensors():
    meta = {"device": "meta"}
    w_ih, w_hh = torch.ones(16, 3), torch.ones(16, 4, **meta)
    nothing = (None, None, None, False, 0, "auto")
    with pytest.raises(RuntimeError, match=r"bppsa::recurrent: found tensors on cpu and meta"):
        torch.ops.bppsa.recurrent("lstm", X, None, None, w_ih, w_hh, *nothing)
    with pytest.raises(RuntimeError, match=r"bppsa::linear: found tensors on cpu and meta"):
        torch.ops.bppsa.linear(X, torch.ones(4, 3, **meta), None)


@every_cell
def test_weights_of_two_dtypes_are_named(cell):
    for name in weights_of(cell)[1:]:
        layer = getattr(bl.nn, cell)(3, 4)
        setattr(layer, name, nn.Parameter(getattr(layer, name).double()))
        with pytest.raises(ValueError, match=r"found torch\.float32 and torch\.float64"):
            layer(X)


@every_cell
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_16_bits_some_weights_may_stay_32(cell, dtype):
    for name in weights_of(cell)[1:]:
        layer = getattr(bl.nn, cell)(3, 4)
        wanted = layer(X)[0]
        kept = getattr(layer, name)
        setattr(layer.to(dtype), name, nn.Parameter(kept.detach().float()))
        found = layer(X.to(dtype))[0]
        assert found.dtype == dtype and torch.allclose(found.float(), wanted, atol=0.05)


@every_cell
def test_complex_numbers_are_refused_by_name(cell):
    layer = getattr(bl.nn, cell)(3, 4, dtype=torch.complex64)
    with pytest.raises(TypeError, match=r"input: found torch\.complex64"):
        layer(X.to(torch.complex64))


COMPUTED = {
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight_hh_l0", 0.5),
    "parametrized": lambda layer: parametrizations.weight_norm(layer, "weight_hh_l0"),
    "weight norm by hooks": lambda layer: nn.utils.weight_norm(layer, "weight_hh_l0"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("how", COMPUTED)
def test_computed_weights_do_not_move_to_another_class(how):
    stock, ours = nn.LSTM(3, 4), bl.nn.LSTM(3, 4)
    COMPUTED[how](stock)
    COMPUTED[how](ours)
    with pytest.raises(ValueError, match="weight_hh_l0: found a weight that is computed"):
        bl.nn.LSTM.from_torch(stock)
    with pytest.raises(ValueError, match="weight_hh_l0: found a weight that is computed"):
        ours.to_torch()


def test_tied_weights_stay_tied():
    layer = bl.nn.GRU(3, 4, bidirectional=True)
    layer.weight_hh_l0_reverse = layer.weight_hh_l0
    stock = layer.to_torch()
    assert stock.weight_hh_l0_reverse is stock.weight_hh_l0 is layer.weight_hh_l0
    again = bl.nn.GRU.from_torch(stock)
    assert again.weight_hh_l0_reverse is again.weight_hh_l0
    assert torch.allclose(layer(X)[0], stock(X)[0], atol=1e-6)
    assert torch.equal(again(X)[0], layer(X)[0])


def test_statistics_of_a_ligru_begin_again():
    layer = bl.nn.LiGRU(3, 4, num_layers=2)
    layer(X)
    assert layer.running_mean_l1.any()
    layer.reset_parameters()
    assert not layer.running_mean_l0.any() and not layer.running_mean_l1.any()
    assert bool((layer.running_var_l0 == 1).all()) and bool((layer.running_var_l1 == 1).all())
    with torch.device("meta"):
        late = bl.nn.LiGRU(3, 4)
    late = late.to_empty(device="cpu")
    late.reset_parameters()
    assert late.eval()(X)[0].isfinite().all()


def test_a_momentum_is_a_number():
    with pytest.raises(TypeError, match="momentum: found None, wanted a number"):
        bl.nn.LiGRU(3, 4, momentum=None)
