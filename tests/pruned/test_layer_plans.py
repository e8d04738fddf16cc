"""Dense or sparse: a plan holds until a size or a mask changes, and every change is seen."""

import copy
import pickle

import pytest
import torch
from support.cases import relative_error
from support.helpers import assert_close, assert_identical
from support.pruned_networks import B, image, results, twins
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl
from bppsa_lightning._replacement import Made
from bppsa_lightning.planner import cost_pruned as cost
from bppsa_lightning.pruned.layer import SparseLayer

pytestmark = pytest.mark.usefixtures("every_layer_is_sparse")


def test_a_layer_that_is_planned_dense_is_pytorchs(monkeypatch):
    monkeypatch.setattr(
        cost, "choose", lambda *_: cost.PrunedPlan(False, 2.0, 1.0, "dense for the test")
    )
    stock, ours = twins()
    assert_identical(results(ours, image()), results(stock, image()))
    assert ours[0].forward.reason == "dense for the test" and "dense for" in bl.explain(ours)


def dense_below(least):
    """The plan: sparse for images of at least so many rows."""
    return lambda size: cost.PrunedPlan(least <= size.H, 1.0, 1.0, f"{size.H} rows")


@pytest.mark.parametrize("amount", [0.7, 0.0])
def test_a_dense_plan_holds_until_something_changes(monkeypatch, amount):
    """Every call as PyTorch's, bit for bit, and counted; the checks are made once."""
    monkeypatch.setattr(cost, "choose", dense_below(99))
    stock, ours = twins(amount=amount)
    layer, x = ours[0].forward, image()
    seen = []
    refused = SparseLayer._unsupported_call
    monkeypatch.setattr(
        SparseLayer, "_unsupported_call", lambda *a: seen.append(a[0]) or refused(*a)
    )

    def same(x, checks):
        seen.clear()
        before = layer.fallback_calls
        assert_identical(results(ours, x), results(stock, x))
        assert torch.equal(ours[0].weight, stock[0].weight)
        assert layer.fallback_calls == before + 1 and layer.calls == 0
        assert (layer in seen) == checks, layer.name

    same(x, True)
    same(x, False)
    for model in (stock, ours):
        with torch.no_grad():
            model[0].weight_orig.mul_(0.5)
    same(x, False)
    same(x[:5], True)
    for model in (stock, ours):
        model[0].weight_mask[1:3] = 0
    same(x[:5], True)
    same(x[:5], False)
    assert layer.reason == layer.plan.reason
    for model in (stock, ours):
        torch.manual_seed(7)
        prune.random_unstructured(model[0], "weight", 0.3)
    same(x[:5], True)
    same(x[:5], False)
    for model in (stock, ours):
        prune.remove(model[0], "weight")
    assert_identical(results(ours, x[:5]), results(stock, x[:5]))
    assert layer.reason == "not pruned"


def test_dense_and_sparse_sizes_in_turn(monkeypatch):
    monkeypatch.setattr(cost, "choose", dense_below(9))
    stock, ours = twins()
    layer, wide = ours[0].forward, image()
    narrow = wide[:, :, :8]
    for _ in range(3):
        for x, calls in ((wide, 1), (narrow, 0), (narrow, 0)):
            before = layer.calls
            assert_close(results(ours, x), results(stock, x), 1e-12)
            assert layer.calls == before + calls and layer.size == (B, *x.shape[2:])
            assert (layer.reason is None) == (calls == 1)


def test_a_mask_of_ones_costs_no_product(monkeypatch):
    """weight_orig is the weight then, but not what module.weight gives to write into."""
    monkeypatch.setattr(cost, "choose", dense_below(99))
    stock, ours = twins(amount=0.0)
    for model in (stock, ours):
        for _ in range(2):
            results(model, image())
        with torch.no_grad():
            model[0].weight.data.zero_()
    assert_identical(results(ours, image()), results(stock, image()))
    monkeypatch.setattr(SparseLayer, "dense_weight", lambda _: pytest.fail("a product"))
    results(ours, image())


def test_a_later_hook_has_the_last_word_on_the_weight(monkeypatch):
    monkeypatch.setattr(cost, "choose", dense_below(99))
    stock, ours = twins(amount=0.0)

    def halve(module, _):
        module.weight = module.weight / 2

    for model in (stock, ours):
        model[0].register_forward_pre_hook(halve)
    for _ in range(3):
        assert_identical(results(ours, image()), results(stock, image()))


def test_checkpointing_recomputes_what_the_forward_kept(monkeypatch):
    """At each size as many tensors, whatever size the call before had."""
    monkeypatch.setattr(
        cost, "choose", lambda size: cost.PrunedPlan(size.B % 2 == 0, 1.0, 1.0, "odd")
    )
    for amount in (0.7, 0.0):
        stock, ours = twins(amount=amount)
        for B_now in (16, 16, 5, 5, 16, 3):
            x, found = image()[:B_now], []
            for model in (stock, ours):
                model.zero_grad()
                checkpoint(model, x, use_reentrant=False).square().sum().backward()
                found.append({name: p.grad for name, p in model.named_parameters()})
            assert_close(found[1], found[0], 1e-12)


@pytest.mark.parametrize("amount", [0.7, 0.0])
def test_weights_that_change_within_autocast_are_seen(monkeypatch, amount):
    monkeypatch.setattr(cost, "choose", dense_below(99))
    stock, ours = (model.float() for model in twins(amount=amount))
    x = image(torch.float32)
    outputs = []
    for model in (stock, ours):
        model(x)
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(2):
                output = model(x)
                with torch.no_grad():
                    model[0].weight_orig.mul_(-1)
            outputs.append(output)
    assert torch.equal(*outputs)


def test_tracing_parametrizations_and_inference_first(monkeypatch):
    for plan in (True, False):
        monkeypatch.setattr(
            cost, "choose", lambda *_, plan=plan: cost.PrunedPlan(plan, 1.0, 1.0, "test")
        )
        for amount in (0.7, 0.0):
            stock, ours = twins(amount=amount)
            with torch.inference_mode():
                ours(image())
            assert_close(results(ours, image()), results(stock, image()), 1e-12)
            traced = torch.fx.symbolic_trace(ours)
            assert relative_error(traced(image()), stock(image())) < 1e-12
            for model in (stock, ours):
                parametrize.register_parametrization(model[0], "weight_orig", nn.Tanh())
            assert relative_error(ours(image()), stock(image())) < 1e-12


@pytest.mark.parametrize("amount", [0.7, 0.0])
@pytest.mark.parametrize("duplicate", ["deepcopy", "pickle"])
def test_a_copy_knows_nothing_of_the_mask(monkeypatch, amount, duplicate):
    """Its mask counts changes anew: the same number need not be the same mask."""
    monkeypatch.setattr(cost, "choose", dense_below(99) if amount == 0 else cost.choose)
    _, ours = twins(amount=amount)
    with torch.no_grad():
        ours(image())
    for change in range(3):
        with torch.no_grad():
            other = pickle.loads(pickle.dumps(ours)) if duplicate == "pickle" else None
            other = copy.deepcopy(ours) if other is None else other
        for _ in range(change):
            other[0].weight_mask[change] = 0
        weight = other[0].weight_orig * other[0].weight_mask
        wanted = nn.functional.conv2d(image(), weight, other[0].bias, padding="same")
        assert relative_error(other[0](image()), wanted) < 1e-12


CHANGED = {
    "dilation": {"dilation": (2, 2)},  # with padding="same", which follows it
    "padding": {"padding": (2, 0)},
    "stride": {"padding": 1, "stride": 2},
}


@pytest.mark.parametrize("renewed", [False, True])
@pytest.mark.parametrize("options", CHANGED.values(), ids=CHANGED)
def test_options_that_change_are_seen_as_a_mask_is(options, renewed):
    stock, ours = twins()
    results(ours, image())
    layer = ours[0].forward
    if renewed:  # as from run to run
        layer.detach()
        layer = Made([layer])(SparseLayer, "0", ours[0])
        layer.attach()
    for model in (stock, ours):
        vars(model[0]).update(options)
    assert_close(results(ours[:3], image()), results(stock[:3], image()), 1e-12)
    assert layer.reason is None and layer.calls > 0


def test_a_stride_that_pytorch_refuses_beside_its_padding():
    _, ours = twins()
    ours(image())
    ours[0].stride = 2  # its padding is "same"
    with pytest.raises(RuntimeError, match="not supported for strided convolutions"):
        ours(image())
