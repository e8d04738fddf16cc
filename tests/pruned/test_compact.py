"""Compact weights: the same training on surviving weights alone, saved and loaded dense."""

import io

import pytest
import torch
from support.helpers import assert_close, assert_identical, weights
from support.pruned_networks import image, pruned_network, twins
from torch import nn

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
