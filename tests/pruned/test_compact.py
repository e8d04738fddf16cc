"""Compact weights: the same training on surviving weights alone, saved and loaded dense."""

import copy
import io
import pickle

import pytest
import torch
from support.cases import relative_error
from support.helpers import assert_close, assert_identical, weights
from support.pruned_networks import image, pruned_network, twins
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning import pruned
from bppsa_lightning.pruned.compact import CompactWeight

pytestmark = pytest.mark.usefixtures("every_layer_is_sparse")

OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "fused": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, fused=True),
}


def trained(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(image()).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 0.5)
        optimizer.step()
    return loss.detach()


def masked(model):
    """The masked weights, and what the network makes of them."""
    found = {"output": model(image()).detach()}  # PyTorch masks at a forward only
    for name, module in model.named_modules():
        if hasattr(module, "weight_mask"):
            found[name] = module.weight.detach()
    return found


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_compact_training_is_the_same_training(kind):
    stock, ours = twins()
    optimizers = {m: OPTIMIZERS[kind](m.parameters()) for m in (stock, ours)}
    originals = dict(ours.named_parameters())
    losses = {m: [trained(m, optimizers[m], 3)] for m in (stock, ours)}
    compact = [CompactWeight(p, [optimizers[ours]]) for p in pruned.sparse_layers(ours).values()]
    assert ours[0].weight_orig.shape == (ours[0].forward.pattern.nnz,)
    for m in (stock, ours):
        losses[m].append(trained(m, optimizers[m], 4))
    assert_close(masked(ours), masked(stock), 1e-10)
    saved = io.BytesIO()
    torch.save(ours.state_dict(), saved)
    for weight in compact:
        weight.expand([optimizers[ours]])
    assert all(a is b for a, b in zip(ours.parameters(), originals.values(), strict=True))
    for m in (stock, ours):
        losses[m].append(trained(m, optimizers[m], 4))
    assert torch.stack(losses[ours]).tolist() == pytest.approx(torch.stack(losses[stock]).tolist())
    assert_close(masked(ours), masked(stock), 1e-10)
    saved.seek(0)
    loaded = pruned_network()
    loaded.load_state_dict(torch.load(saved))
    assert loaded[0].weight_orig.shape == (6, 3, 3, 3)


def test_compact_weights_are_saved_and_loaded_dense():
    stock, ours = twins()
    compact = [CompactWeight(p) for p in pruned.sparse_layers(ours).values()]
    assert_identical(weights(ours), weights(stock))
    other = {
        name: value if name.endswith("mask") else torch.randn_like(value)
        for name, value in weights(stock).items()
    }
    for model in (stock, ours):
        model.load_state_dict(other)
    assert_identical(weights(ours), other)
    assert_close(results_output(ours), results_output(stock), 1e-12)
    other["0.weight_mask"] = 1 - other["0.weight_mask"]
    with pytest.raises(RuntimeError, match="0.weight_mask: found another mask than"):
        ours.load_state_dict(other)
    for weight in compact:
        weight.expand()
    assert ours[0].weight_orig is compact[0].dense


def results_output(model):
    return {"output": model(image()).detach()}


@pytest.mark.filterwarnings("ignore:The tensor attribute.* assigned during export:UserWarning")
def test_an_export_of_compact_weights_has_pytorchs_operators():
    stock, ours = twins()
    for layer in pruned.sparse_layers(ours).values():
        CompactWeight(layer)
    with torch.no_grad():
        program = torch.export.export(ours.eval(), (image(),), strict=False)
        assert "ops.bppsa" not in str(program.graph)
        torch.testing.assert_close(program.module()(image()), stock.eval()(image()))


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


def compact_twins(optimizers=()):
    stock, ours = twins()
    for layer in pruned.sparse_layers(ours).values():
        CompactWeight(layer, optimizers)
    with torch.no_grad():  # what has a graph cannot be copied
        for model in (stock, ours):
            model(image())
    return stock, ours


@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_of_a_compact_model_is_a_model_of_its_own(kind):
    stock, ours = compact_twins()
    stock, copied = COPIES[kind](stock), COPIES[kind](ours)
    assert_identical(weights(copied), weights(stock))
    optimizer = torch.optim.SGD(copied.parameters(), 0.05)
    trained(copied, optimizer, 2)
    trained(stock, torch.optim.SGD(stock.parameters(), 0.05), 2)
    assert_close(masked(copied), masked(stock), 1e-10)
    bl.detach(copied)
    assert copied[0].weight_orig.shape == (6, 3, 3, 3) and ours[0].weight_orig.dim() == 1
    assert_close(masked(copied), masked(stock), 1e-10)
    for model in (stock, copied):
        prune.l1_unstructured(model[0], "weight", 0.5)
        prune.remove(model[0], "weight")
    assert_close(weights(copied) | masked(copied), weights(copied) | masked(stock), 1e-10)
    assert weights(copied).keys() == weights(stock).keys()


def test_a_copy_in_another_dtype_computes_and_is_saved():
    stock, ours = compact_twins()
    stock, ours = stock.bfloat16(), copy.deepcopy(ours).bfloat16()
    found, wanted = (model(image(torch.bfloat16)) for model in (ours, stock))
    assert relative_error(found, wanted) < 0.02
    for output in (found, wanted):
        output.sum().backward()
    for detached in (False, True):
        if detached:
            bl.detach(ours)
        assert_identical(weights(ours), weights(stock))
    assert relative_error(ours[0].weight_orig.grad, stock[0].weight_orig.grad) < 0.02


def test_a_copy_without_its_mask_is_saved_without():
    stock, ours = compact_twins()
    ours = copy.deepcopy(ours)
    for model in (stock, ours):
        prune.remove(model[0], "weight")
    assert weights(ours).keys() == weights(stock).keys()
    assert_close(weights(ours), weights(stock), 1e-12)


def test_detaching_gives_optimizers_the_dense_parameters_back():
    stock, ours = twins()
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (stock, ours)]
    for layer in pruned.sparse_layers(ours).values():
        CompactWeight(layer, optimizers[1:])
    for detached in (False, True):
        if detached:
            bl.detach(ours)
        for model, optimizer in zip((stock, ours), optimizers, strict=True):
            trained(model, optimizer, 3)
        assert_close(masked(ours), masked(stock), 1e-10)
