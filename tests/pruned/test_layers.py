"""Pruned layers under attach: results, gradients and everything around them as in PyTorch."""

import copy
import io
import pickle

import pytest
import torch
from support.cases import relative_error
from support.helpers import assert_close, assert_identical, weights
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl
from bppsa_lightning import pruned
from bppsa_lightning.planner import pruned as cost
from bppsa_lightning.pruned.compact import CompactWeight
from bppsa_lightning.pruned.layer import SparseLayer
from bppsa_lightning.pruned.layout import samples_innermost

B = 16


@pytest.fixture(autouse=True)
def every_layer_is_sparse(monkeypatch):
    """Results count here, not which path is faster."""
    monkeypatch.setattr(cost, "choose", lambda *_: cost.Plan(True, 1.0, 2.0, "for the test"))


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
    assert {(p.calls, p.handed_over, p.reason) for p in pruned_layers.values()} == {
        (calls, 0, None)
    }


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


def test_the_layout_is_kept_from_layer_to_layer():
    _, ours = twins(norm=True)
    seen = {}
    for name, child in ours.named_children():
        child.register_forward_hook(
            lambda module, _, output, name=name: seen.__setitem__(name, samples_innermost(output))
        )
    ours(image())
    names = [name for name, child in ours.named_children() if not isinstance(child, nn.Linear)]
    assert all(seen[name] for name in names if not isinstance(ours[int(name)], nn.Flatten))
    kept = [s for c in ours if isinstance(s := pruned.stand_in_of(c), pruned.LayoutLayer)]
    assert len(kept) == 4 and {(s.calls, s.handed_over) for s in kept} == {(1, 0)}


def through_operators(monkeypatch):
    """(ReLU, pooling) of each sparse layer's operator from now on."""
    seen, run = [], pruned.layer.ops.run_sparse_layer

    def watched(x, weight, pattern, bias, relu=False, pool=False):
        seen.append((relu, pool))
        return run(x, weight, pattern, bias, relu, pool)

    monkeypatch.setattr(pruned.layer.ops, "run_sparse_layer", watched)
    return seen


FUSED = [(True, True), (True, False), (False, False), (False, False)]


def test_relu_and_pooling_run_in_the_pass_of_the_layer_before(monkeypatch):
    stock, ours = twins()
    seen = through_operators(monkeypatch)
    assert_close(results(ours, image()), results(stock, image()), 1e-12)
    assert seen == FUSED
    assert_all_sparse(ours)
    seen.clear()  # too few samples for the pooling's vectors; no samples' dimension at all
    for x in (image()[:2], image()[:0]):
        assert_close({"y": ours[:3](x).detach()}, {"y": stock[:3](x).detach()}, 1e-12)
        assert_close({"y": ours(x).detach()}, {"y": stock(x).detach()}, 1e-12)
    assert (True, True) not in seen and (True, False) in seen


WATCHERS = {
    "forward hook": lambda module, hook: module.register_forward_hook(hook),
    "forward pre-hook": lambda module, hook: module.register_forward_pre_hook(hook),
    "backward hook": lambda module, hook: module.register_full_backward_hook(hook),
    "global hook": lambda _, hook: nn.modules.module.register_module_forward_hook(hook),
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("watcher", WATCHERS)
def test_who_looks_at_what_is_between_sees_it(watcher, place, monkeypatch):
    stock, ours = twins()
    shapes = {}
    for model in (stock, ours):
        calls = shapes[model] = []
        hook = lambda _module, x, *y, calls=calls: calls.append(  # noqa: E731
            [t.shape for some in (x, *y) for t in some if isinstance(t, torch.Tensor)]
        )
        handle = WATCHERS[watcher](model[place], hook)
        seen = through_operators(monkeypatch)
        results(model, image())
        handle.remove()
    assert len(shapes[ours]) == len(shapes[stock]) > 0
    assert shapes[ours] == shapes[stock]
    assert seen[0] == ((True, False) if place == 2 and "global" not in watcher else (False, False))
    seen.clear()
    results(ours, image())
    assert seen == FUSED


def halved(stock, ours):
    """Prunes both alike, and attaches the second."""
    for model in (stock, ours):
        torch.manual_seed(1)
        for module in model:
            if isinstance(module, nn.Conv2d | nn.Linear):
                prune.random_unstructured(module, "weight", 0.5)
    ours.load_state_dict(stock.state_dict())
    bl.attach(ours)


OTHERS = {
    "another window": [nn.ReLU(), nn.MaxPool2d(3)],
    "overlapping": [nn.ReLU(), nn.MaxPool2d(2, 1)],
    "rounded up": [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)],
    "padded": [nn.ReLU(), nn.MaxPool2d(2, padding=1)],
    "pooled first": [nn.MaxPool2d((2, 2), (2, 2)), nn.ReLU(inplace=True)],
    "twice": [nn.MaxPool2d(2), nn.MaxPool2d(2)],
    "pooled only": [nn.MaxPool2d(2)],
    "a norm between": [nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)],
    "nested": [nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_neighbours(name, monkeypatch):
    wanted = {
        "another window": (True, False), "overlapping": (True, False),
        "rounded up": (True, False), "padded": (True, False), "pooled first": (True, True),
        "twice": (False, True), "pooled only": (False, True),
    }.get(name, (False, False))  # fmt: skip
    stock, ours = (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, bias="norm" not in name), *copy.deepcopy(OTHERS[name])
        ).double()
        for _ in "ab"
    )
    halved(stock, ours)
    seen = through_operators(monkeypatch)
    assert_close(results(ours, image()), results(stock, image()), 1e-12)
    assert seen == [wanted]


def test_a_linear_layer_with_its_relu(monkeypatch):
    stock, ours = (
        nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU()).double() for _ in "ab"
    )
    halved(stock, ours)
    seen = through_operators(monkeypatch)
    for shape in ((9,), (4, 9), (2, 3, 9)):
        x = torch.randn(shape, dtype=torch.float64)
        assert_close(results(ours, x), results(stock, x), 1e-12)
    assert set(seen) == {(True, False)} and len(seen) == 6
    bl.detach(ours)
    assert "forward" not in ours.__dict__


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3, 2, 1, return_indices=True),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.AvgPool2d(2, count_include_pad=False, padding=1),
        nn.AdaptiveMaxPool2d(3, return_indices=True),
        nn.AdaptiveAvgPool2d(2),
        nn.BatchNorm2d(4, affine=False, track_running_stats=False),
        nn.BatchNorm2d(4, momentum=None),
    ],
    ids=repr,
)
def test_layers_between_are_the_same_on_the_view(pool):
    ours = copy.deepcopy(pool)
    pruned.LayoutLayer("", ours).attach()
    x = torch.randn(4, 7, 7, B, dtype=torch.float64).permute(3, 0, 1, 2)
    assert samples_innermost(x)
    for module in (pool, ours):
        module.double()
    a, b = (x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for _ in "ab")
    wanted, found = pool(a), ours(b)
    if isinstance(wanted, tuple):
        assert torch.equal(wanted[1], found[1])
        wanted, found = wanted[0], found[0]
    assert relative_error(found, wanted) < 1e-14 and samples_innermost(found)
    wanted.pow(3).sum().backward()  # a norm's squares have a sum that nothing changes
    found.pow(3).sum().backward()
    assert relative_error(b.grad, a.grad) < 1e-12
    assert_close(weights(ours), weights(pool), 1e-14)
    plain = torch.randn(B, 4, 7, 7, dtype=torch.float64)
    ours(plain)
    assert (ours.forward.calls, ours.forward.handed_over) == (1, 1)


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
    assert "(itself)" in bl.explain(module) and "left to PyTorch:" in bl.explain(module)


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
    assert layer.reason == "shapes that nn.Conv2d refuses"
    with pytest.raises(RuntimeError):
        ours[0](x.double())
    assert layer.reason.startswith("dtypes float64, float32")
    tangent = torch.randn_like(x)
    run = {m: torch.func.jvp(lambda t, m=m: m[0](t), (x,), (tangent,))[1] for m in (ours, stock)}
    assert relative_error(run[ours], run[stock].double()) < 1e-5
    assert layer.calls == 0 and layer.handed_over == 4


def test_explain_lists_density_path_and_reason():
    _, ours = twins()
    assert "planned at the first call" in bl.explain(ours)
    ours(image())
    table = bl.explain(ours)
    row = next(line for line in table.splitlines() if line.split()[:2] == ["0", "Conv2d"])
    assert row.split()[2:5] == [str(ours[0].forward.pattern.nnz), "0.3025", "sparse"]
    assert "for the test" in row


def test_a_layer_that_is_planned_dense_is_pytorchs(monkeypatch):
    monkeypatch.setattr(cost, "choose", lambda *_: cost.Plan(False, 2.0, 1.0, "dense for the test"))
    stock, ours = twins()
    assert_identical(results(ours, image()), results(stock, image()))
    assert ours[0].forward.reason == "dense for the test" and "dense for" in bl.explain(ours)


def dense_below(least):
    """The plan: sparse for images of at least so many rows."""
    return lambda _, B, H, W: cost.Plan(least <= H, 1.0, 1.0, f"{H} rows")


@pytest.mark.parametrize("amount", [0.7, 0.0])
def test_a_dense_plan_holds_until_something_changes(monkeypatch, amount):
    """Every call as PyTorch's, bit for bit, and counted; the checks are made once."""
    monkeypatch.setattr(cost, "choose", dense_below(99))
    stock, ours = twins(amount=amount)
    layer, x = ours[0].forward, image()
    seen = []
    refused = SparseLayer._why_not
    monkeypatch.setattr(SparseLayer, "_why_not", lambda *a: seen.append(a[0]) or refused(*a))

    def same(x, checks):
        seen.clear()
        before = layer.handed_over
        assert_identical(results(ours, x), results(stock, x))
        assert torch.equal(ours[0].weight, stock[0].weight)
        assert layer.handed_over == before + 1 and layer.calls == 0
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
    monkeypatch.setattr(cost, "choose", lambda _, B, H, W: cost.Plan(B % 2 == 0, 1.0, 1.0, "odd"))
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
        monkeypatch.setattr(cost, "choose", lambda *_, plan=plan: cost.Plan(plan, 1.0, 1.0, "test"))
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
    assert not CompactWeight.suits(ours[0].forward)


def test_compiled():
    stock, ours = twins()
    compiled = torch.compile(ours, backend="aot_eager")
    x = image().requires_grad_()
    (found,) = torch.autograd.grad(compiled(x).square().sum(), x)
    (wanted,) = torch.autograd.grad(stock(x).square().sum(), x)
    assert relative_error(found, wanted) < 1e-12


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


# --- compact -----------------------------------------------------------------------------------

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


def test_a_scan_over_depth_takes_its_pruned_layers_with_it():
    stock, ours = pruned_network(), pruned_network()
    ours.load_state_dict(stock.state_dict())
    (chain,) = bl.attach(ours, "linear")
    assert all(pruned.stand_in_of(module) is None for module in ours)
    x = torch.randn(B, 3, 12, 12, dtype=torch.float64)
    for model in (stock, ours):
        model(x).square().sum().backward()
    assert chain.calls == 1
    for p, q in zip(stock.parameters(), ours.parameters(), strict=True):
        assert relative_error(q.grad, p.grad) < 1e-10
    assert "left to PyTorch" not in bl.explain(ours)
