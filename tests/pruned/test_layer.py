"""Pruned layers under attach: results, gradients and everything around them as in PyTorch."""

import copy

import pytest
import torch
from support.cases import relative_error
from support.helpers import assert_close, assert_identical, weights
from support.pruned_networks import B, assert_all_sparse, image, pruned_network, results, twins
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning import pruned
from bppsa_lightning._replacement import Replacement, replacement_of
from bppsa_lightning.pruned.compact import CompactWeight

pytestmark = pytest.mark.usefixtures("every_layer_is_sparse")


@pytest.mark.parametrize("norm", [False, True])
def test_results_gradients_and_buffers_are_those_of_pytorch(norm):
    stock, ours = twins(norm=norm)
    assert_close(results(ours, image()), results(stock, image()), 1e-12)
    assert_all_sparse(ours)
    assert_close(weights(ours), weights(stock), 1e-12)
    for module in ours:
        if hasattr(module, "weight_mask"):
            assert not module.weight_orig.grad[module.weight_mask == 0].any()
    for child in ours.eval(), stock.eval():
        child.zero_grad()
    with torch.no_grad():
        assert relative_error(ours(image()), stock(image())) < 1e-12


def test_a_linear_layer_of_any_batch_and_an_image_alone():
    for shape in ((9,), (4, 9), (2, 3, 9), (0, 9)):
        stock, ours = nn.Linear(9, 4), nn.Linear(9, 4)
        ours.load_state_dict(stock.state_dict())
        for layer in (stock, ours):
            torch.manual_seed(1)
            prune.random_unstructured(layer.double(), "weight", 0.5)
        bl.attach(ours)
        x = torch.randn(shape, dtype=torch.float64)
        assert_close(results(ours, x), results(stock, x), 1e-13)
        assert_all_sparse(ours)
    stock, ours = twins()
    one = image()[0]
    assert relative_error(ours[0](one), stock[0](one)) < 1e-13


def test_weight_is_the_masked_weight_whenever_it_is_read():
    stock, ours = twins()
    ours(image()), stock(image())
    for mine, theirs in ((ours[0], stock[0]), (ours[-1], stock[-1])):
        assert mine.weight.shape == theirs.weight.shape and isinstance(mine.weight, torch.Tensor)
        assert torch.equal(mine.weight, theirs.weight)
        (wanted,) = torch.autograd.grad(theirs.weight.square().sum(), theirs.weight_orig)
        (found,) = torch.autograd.grad(mine.weight.square().sum(), mine.weight_orig)
        assert torch.equal(found, wanted)
        with torch.no_grad():  # no value of an earlier forward
            mine.weight_orig.mul_(2)
        assert torch.equal(mine.weight, 2 * theirs.weight)


def test_detach_gives_everything_back():
    stock, ours = twins()
    before = weights(stock)
    ours(image())
    bl.detach(ours)
    assert all("forward" not in module.__dict__ for module in ours.modules())
    assert all(
        "apply_mask" not in vars(hook) for m in ours for hook in m._forward_pre_hooks.values()
    )
    assert type(ours[0].weight) is torch.Tensor
    assert_identical(weights(ours), before)
    assert_identical(results(ours, image()), results(stock, image()))


@pytest.mark.filterwarnings("ignore:Pruning has left no weight of 0")
def test_a_new_mask_is_a_new_pattern():
    stock, ours = twins()
    results(ours, image())
    for again in range(3):
        for model in (stock, ours):
            torch.manual_seed(again)
            if again == 0:
                prune.random_unstructured(model[0], "weight", 0.4)
            elif again == 1:
                model[0].weight_mask.zero_()
            else:
                model.load_state_dict(pruned_network().state_dict())
        assert_close(results(ours, image()), results(stock, image()), 1e-12)
    assert_all_sparse(ours, calls=4)


def test_unpruned_again():
    stock, ours = twins()
    for model in (stock, ours):
        prune.remove(model[0], "weight")
    assert_close(results(ours, image()), results(stock, image()), 1e-12)
    assert ours[0].forward.reason == "not pruned"


def test_pruned_biases_and_frozen_weights():
    stock, ours = pruned_network(), pruned_network()
    for model in (stock, ours):
        torch.manual_seed(3)
        prune.random_unstructured(model[0], "bias", 0.5)
        model[6].weight_orig.requires_grad_(False)
        model[3].weight_orig.requires_grad_(False)
    ours.load_state_dict(stock.state_dict())
    bl.attach(ours)
    assert_close(results(ours, image()), results(stock, image()), 1e-12)
    assert ours[3].weight_orig.grad is None
    assert_all_sparse(ours)


REFUSED = {
    "circular": lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
    "transposed": lambda: nn.ConvTranspose2d(3, 4, 3),
    "one dimension": lambda: nn.Conv1d(3, 4, 3),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_kernel_is_left_alone_with_a_reason(what):
    module = REFUSED[what]()
    prune.random_unstructured(module, "weight", 0.5)
    bl.attach(module)
    assert "forward" not in module.__dict__
    assert "(itself)" in bl.explain(module) and "not accelerated:" in bl.explain(module)


def test_calls_that_it_does_not_take_are_handed_over():
    stock, ours = twins()
    layer = ours[0].forward
    for model in (ours, stock):
        model.float()
    x = image(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours[0](x), stock[0](x))
    assert layer.reason == "under autocast PyTorch multiplies in 16 bits"
    with pytest.raises(RuntimeError):
        ours[0](x[:, :2])
    assert layer.reason == "shapes nn.Conv2d rejects; PyTorch raises the error"
    with pytest.raises(RuntimeError):
        ours[0](x.double())
    assert layer.reason.startswith("dtypes float64, float32")
    tangent = torch.randn_like(x)
    run = {m: torch.func.jvp(lambda t, m=m: m[0](t), (x,), (tangent,))[1] for m in (ours, stock)}
    assert relative_error(run[ours], run[stock].double()) < 1e-5
    assert layer.calls == 0 and layer.fallback_calls == 4


def test_explain_lists_density_path_and_reason():
    _, ours = twins()
    assert "planned at the first call" in bl.explain(ours)
    ours(image())
    table = bl.explain(ours)
    row = next(line for line in table.splitlines() if line.split()[:2] == ["0", "Conv2d"])
    assert row.split()[2:5] == [str(ours[0].forward.pattern.nnz), "0.3025", "sparse"]
    assert "for the test" in row


def test_a_module_can_be_copied_after_a_forward_without_gradients():
    _, ours = twins()
    with torch.no_grad():
        ours(image())
    other = copy.deepcopy(ours)  # in grad mode, where the weight would have a graph
    assert torch.equal(other[0].weight, ours[0].weight)


def test_a_mask_that_scales_is_left_to_pytorch():
    stock, ours = twins()
    for model in (stock, ours):
        model[0].weight_mask.mul_(2)
    for _ in range(2):
        assert_close(results(ours, image()), results(stock, image()), 1e-12)
    assert ours[0].forward.reason == "its mask has other numbers than 0 and 1"
    assert not CompactWeight.is_compactable(ours[0].forward)


@pytest.mark.slow
def test_compiled():
    stock, ours = twins()
    compiled = torch.compile(ours, backend="aot_eager")
    x = image().requires_grad_()
    (found,) = torch.autograd.grad(compiled(x).square().sum(), x)
    (wanted,) = torch.autograd.grad(stock(x).square().sum(), x)
    assert relative_error(found, wanted) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("changes", [0, 1])
def test_a_compiled_layer_sees_its_mask_change(monkeypatch, changes):
    """Also if no change of it was counted before; and makes no pattern that it has."""
    stock, ours = pruned_network(), pruned_network()
    for model in (stock, ours):
        mask = model[0].weight_mask.clone()
        for _ in range(changes):
            mask[0] = 0
        model[0].weight_mask = mask
    ours.load_state_dict(stock.state_dict()) if changes else None
    bl.attach(ours)
    ours(image())
    made = []
    make = pruned.layer._pattern_of
    monkeypatch.setattr(pruned.layer, "_pattern_of", lambda *a: made.append(a) or make(*a))
    compiled = torch.compile(ours, backend="aot_eager")
    for _ in range(3):
        assert relative_error(compiled(image()), stock(image())) < 1e-12
    assert not made
    for model in (stock, ours):
        model[0].weight_mask[1:4] = 0
    for _ in range(2):
        assert relative_error(compiled(image()), stock(image())) < 1e-12
    assert len(made) == 1


def test_a_scan_over_depth_takes_its_pruned_layers_with_it():
    stock, ours = pruned_network(), pruned_network()
    ours.load_state_dict(stock.state_dict())
    (chain,) = bl.attach(ours, "linear")
    assert all(replacement_of(module, Replacement) is None for module in ours)
    x = torch.randn(B, 3, 12, 12, dtype=torch.float64)
    for model in (stock, ours):
        model(x).square().sum().backward()
    assert chain.calls == 1
    for p, q in zip(stock.parameters(), ours.parameters(), strict=True):
        assert relative_error(q.grad, p.grad) < 1e-10
    assert "not accelerated" not in bl.explain(ours)
