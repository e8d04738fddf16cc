"""Chains over depth: gradients against autograd; what is left alone; training features."""

import copy
import pickle

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from support.cases import DEVICES, relative_error
from support.helpers import fit
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

import bppsa_lightning as bl
from bppsa_lightning.depth.stack import FeedforwardChain


def lenet():
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84),
        nn.Tanh(), nn.Linear(84, 10),
    )  # fmt: skip


class VGG(nn.Module):
    """The shape of torchvision's VGG-11, `width` times as wide."""

    def __init__(self, width=1 / 16, batch_norm=False, dropout=0.5):
        super().__init__()
        layers, channels = [], 3
        for v in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
            if v == "M":
                layers.append(nn.MaxPool2d(2, 2))
                continue
            out = int(v * width)
            layers.append(nn.Conv2d(channels, out, 3, padding=1))
            layers += [nn.BatchNorm2d(out)] * batch_norm + [nn.ReLU(inplace=True)]
            channels = out
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = nn.Sequential(
            nn.Linear(channels, 64), nn.ReLU(True), nn.Dropout(dropout), nn.Linear(64, 10)
        )

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def everything():
    """Every supported layer, one stack within another."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1, dilation=1), nn.LeakyReLU(0.2, inplace=True),
        nn.Sequential(
            nn.Conv2d(4, 6, (3, 2), padding=(1, 0), groups=2, bias=False),
            nn.Sigmoid(), nn.BatchNorm2d(6).eval(), nn.SiLU(inplace=True), nn.Identity(),
        ),
        nn.MaxPool2d(3, 2, 1), nn.GELU(), nn.Dropout(0.3), nn.AdaptiveAvgPool2d((3, 4)),
        nn.GELU("tanh"), nn.AvgPool2d(2, 1, 1, count_include_pad=False), nn.Flatten(),
        nn.Linear(6 * 4 * 5, 7, bias=False), nn.ReLU(), nn.BatchNorm1d(7, affine=False).eval(),
    )  # fmt: skip


def conv1d():
    return nn.Sequential(
        nn.Conv1d(3, 4, 3, padding="same"), nn.Tanh(), nn.BatchNorm1d(4).eval(), nn.ReLU(),
        nn.Conv1d(4, 2, 5, 2, groups=2), nn.Flatten(), nn.Dropout(0.4), nn.Linear(12, 3),
    )  # fmt: skip


def all_dropped():
    return nn.Sequential(
        nn.Linear(5, 6), nn.ReLU(), nn.Dropout(1.0), nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 2)
    )


MODELS = {
    "lenet": (lenet, (3, 3, 32, 32)),
    "vgg": (VGG, (2, 3, 32, 32)),
    "everything": (everything, (2, 3, 11, 13)),
    "conv1d": (conv1d, (3, 3, 16)),
    "all dropped": (all_dropped, (3, 5)),
}
ALGORITHMS = [("linear", 0), ("blelloch", 1), ("blelloch", 2), ("blelloch", 9)]


def eval_dropout(model):
    """Masks differ between dtypes."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    return model


def gradients(model, x, seed=0):
    """Output, and the gradients of input and parameters of a loss that reads all outputs."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    torch.manual_seed(seed)  # the dropout masks
    y = model(x)
    generator = torch.Generator().manual_seed(1)
    y.backward(torch.randn(y.shape, dtype=torch.float64, generator=generator).to(y))
    named = {name: p.grad for name, p in model.named_parameters()}
    return {"output": y.detach(), "input": x.grad, **named}


def pair(make, algorithm, levels, dtype=torch.float64, budget=2**30, device="cpu"):
    torch.manual_seed(0)
    stock = make().to(device, dtype)
    for m in stock.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            m.running_mean.normal_()
            m.running_var.uniform_(0.5, 2)
    ours = make().to(device, dtype)  # a pruned module cannot be copied
    ours.load_state_dict(stock.state_dict())
    chains = bl.attach(ours, algorithm)
    for chain in chains:
        chain.levels, chain.budget = levels, budget
    return stock, ours, chains


def assert_same(found, wanted, tolerance):
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        have = found[name]
        assert (have is None) == (want is None), name
        if want is not None:
            assert have.shape == want.shape and have.dtype == want.dtype, name
            nothing = float(want.abs().max()) < 1e-13  # what cancels: a bias before batch norm
            assert relative_error(have, want.double()) < tolerance or nothing, name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("algorithm, levels", ALGORITHMS)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_autograd(name, algorithm, levels, device):
    make, size = MODELS[name]
    stock, ours, chains = pair(make, algorithm, levels, device=device)
    assert chains and all(isinstance(c, FeedforwardChain) for c in chains)
    x = torch.randn(size, dtype=torch.float64).to(device)
    for _ in range(2):  # plans made, plans known
        assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
    assert [chain.calls for chain in chains] == [2] * len(chains)
    assert not any(chain.handed_over for chain in chains)
    for chain in chains:
        assert (chain.plan().algorithm, bool(chain.scans)) == (algorithm, algorithm == "blelloch")


@pytest.mark.parametrize("algorithm, levels", ALGORITHMS)
@pytest.mark.parametrize("name", ["lenet", "vgg"])
def test_float32_errs_at_most_twice_as_much_as_pytorch(name, algorithm, levels):
    """In the median over inputs and parameters, of both norms: one error alone is chance."""
    make, size = MODELS[name]
    stock, ours, _ = pair(lambda: eval_dropout(make()), algorithm, levels, torch.float32)
    ratios = {float("inf"): [], 2: []}
    for seed in range(3):
        x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        exact = gradients(copy.deepcopy(stock).double(), x.double())
        found, plain = gradients(ours, x), gradients(stock, x)
        for key in exact:
            for norm in ratios:
                ours_error, stock_error = (
                    float((g[key].double() - exact[key]).flatten().norm(norm))
                    for g in (found, plain)
                )
                ratios[norm].append(ours_error / max(stock_error, 1e-300))
    assert all(sorted(found)[len(found) // 2] <= 2 for found in ratios.values())


@pytest.mark.parametrize("kept, algorithm", [(0.03, "blelloch"), (1.0, "linear")])
def test_vgg11_in_full_width(kept, algorithm):
    def make():
        model = VGG(1.0)
        for module in model.features if kept < 1 else ():
            if isinstance(module, nn.Conv2d):
                prune.l1_unstructured(module, "weight", amount=1 - kept)
        return model

    stock, ours, chains = pair(make, algorithm, 2)
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
    features = chains[0]
    assert features.shape[0] == 21 and features.calls == 1  # one run, pruned or not
    if algorithm == "blelloch":
        (scan,) = features.scans.values()
        assert sum(plan is not None for *_, plan, _ in scan.nodes()) == 15


def test_an_input_without_gradient_spares_the_products_of_the_first_layer():
    stock, ours, (chain,) = pair(lenet, "blelloch", 2)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    for model in (stock, ours):
        model(x).square().sum().backward()
    assert_same(
        {name: p.grad for name, p in ours.named_parameters()},
        {name: p.grad for name, p in stock.named_parameters()},
        1e-10,
    )
    ours(x.requires_grad_()).sum().backward()
    without, whole = chain.scans.values()
    assert list(whole.patterns[1:]) == list(without.patterns)


def test_products_beyond_the_budget_are_walked_and_explained():
    stock, ours, (chain,) = pair(lenet, "blelloch", 3, budget=200_000)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
    text = bl.explain(ours)
    assert "walked: budget" in text and "FLOPs" in text and "blelloch" in text


def test_auto_leaves_stacks_to_pytorch_and_says_so():
    model = VGG()
    assert bl.attach(model) == []
    assert all("forward" not in m.__dict__ for m in model.modules())
    assert "features" in bl.explain(model) and "ask for 'linear' or 'blelloch'" in bl.explain(model)
    chains = bl.attach(model, {"features": "blelloch"})
    assert [c.name for c in chains] == ["features"]
    assert bl.attach(model) == [] and "forward" not in model.features.__dict__


def test_runs_and_what_stands_between_them():
    """Batch norm in training mode couples samples: it runs as it is, between two chains."""
    stock, ours, chains = pair(lambda: VGG(batch_norm=True), "blelloch", 2)
    x = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    for training in (True, False):
        stock.train(training), ours.train(training)
        assert_same(gradients(ours, x), gradients(stock, x), 1e-9)
        for a, b in zip(stock.buffers(), ours.buffers()):
            torch.testing.assert_close(a, b)
    assert all(chain.calls == 2 for chain in chains)
    alone = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3))
    assert bl.attach(alone, "linear") == []
    assert "couple its samples" in bl.explain(alone)


def test_residual_blocks_are_left_alone():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            return x + self.conv(x).relu()

    stock, ours, chains = pair(
        lambda: nn.Sequential(Block(), nn.Conv2d(3, 3, 1), nn.ReLU(), Block(), nn.Flatten()),
        "linear", 0,
    )  # fmt: skip
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-12)
    assert len(chains) == 1
    only = nn.Sequential(Block(), Block())
    assert bl.attach(only, "linear") == [] and "Block: no Jacobian for it" in bl.explain(only)


def test_frozen_and_shared_parameters_and_inputs_without_gradient():
    for algorithm, levels in ALGORITHMS:
        stock, ours, _ = pair(lenet, algorithm, levels)
        for model in (stock, ours):
            model[0].weight.requires_grad_(False)
            model[7].bias.requires_grad_(False)
        x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
        assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
        for model in (stock, ours):
            model.zero_grad()
            model(x).square().sum().backward()
        pairs = zip(stock.parameters(), ours.parameters())
        for a, b in pairs:
            assert (a.grad is None) == (b.grad is None)
            assert a.grad is None or relative_error(b.grad, a.grad) < 1e-10
    layer = nn.Linear(4, 4).double()
    stock = nn.Sequential(layer, nn.Tanh(), layer)
    ours = copy.deepcopy(stock)
    bl.attach(ours, "blelloch")
    x = torch.randn(3, 4, dtype=torch.float64)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("algorithm, levels", ALGORITHMS)
def test_pruned_layers_keep_their_masks_and_patterns_follow_them(algorithm, levels, device):
    stock, ours, (chain, *_) = pair(lenet, algorithm, levels, device=device)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64).to(device)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
    dense = dict(chain.scans)
    for model in (stock, ours):
        for i in (0, 3, 7, 9):
            prune.l1_unstructured(model[i], "weight", amount=0.9)
    found = gradients(ours, x)
    assert_same(found, gradients(stock, x), 1e-10)
    assert bool((found["7.weight_orig"][ours[7].weight_mask == 0] == 0).all())
    for key, scan in chain.scans.items():
        assert scan.patterns[0].nnz < dense[key].patterns[0].nnz / 5
    for model in (stock, ours):  # weights come back to life
        for i in (0, 3, 7, 9):
            prune.remove(model[i], "weight")
            model[i].weight.data.add_(0.01)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-10)


def test_plans_serve_smaller_batches_and_are_not_hoarded():
    stock, ours, (chain,) = pair(conv1d, "blelloch", 2)
    scans = []
    for B in (3, 2, 3, 5):
        x = torch.randn(B, 3, 16, dtype=torch.float64)
        assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
        (scan,) = chain.scans.values()
        scans.append(scan)
    assert scans[0] is scans[1] is scans[2] is not scans[3]
    convolutions = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Tanh())
    (chain,) = bl.attach(convolutions, "blelloch")
    for length in range(5, 45):
        convolutions(torch.randn(1, 3, length)).sum().backward()
    assert 0 < len(chain.scans) <= 16 and len(chain._layers) <= 34


def test_second_derivatives():
    stock, ours, _ = pair(everything, "blelloch", 2)
    x = torch.randn(2, 3, 11, 13, dtype=torch.float64)
    seconds = []
    for model in (stock, ours):
        torch.manual_seed(0)
        xs = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(model(xs).sin().sum(), xs, create_graph=True)
        g.square().sum().backward()
        seconds.append({n: p.grad for n, p in model.named_parameters()} | {"input": xs.grad})
    assert_same(seconds[1], seconds[0], 1e-9)


def test_calls_that_are_handed_over():
    model = lenet()
    (chain,) = bl.attach(model, "linear")
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert not model(x).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
    assert "autocast" in chain.reason
    torch.func.vmap(lambda x: model(x[None]))(x)
    assert "torch.func" in chain.reason
    unbatched = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3))
    (chain,) = bl.attach(unbatched, "blelloch")
    assert unbatched(x[0]).shape == (2, 28, 28) and chain.handed_over == 1
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 3, 5, 5))


def test_hooks_run_and_their_layers_are_not_scanned():
    stock, ours, (chain,) = pair(lenet, "linear", 0)
    seen = []
    for model in (stock, ours):
        model[4].register_forward_hook(lambda m, i, o: seen.append(m) or o * 2)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
    assert len(seen) == 2


def test_copies_pickles_and_detaching():
    stock, ours, (chain,) = pair(lenet, "blelloch", 2)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    wanted = gradients(stock, x)
    gradients(ours, x)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_same(gradients(other, x), wanted, 1e-10)
        assert other.__dict__["forward"].calls == 2 and chain.calls == 1
    assert ours.state_dict().keys() == stock.state_dict().keys()
    bl.detach(ours)
    assert "forward" not in ours.__dict__
    assert_same(gradients(ours, x), wanted, 1e-13)


def test_an_output_changed_in_place_is_noticed():
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Tanh())
    bl.attach(model, "linear")
    x = torch.randn(2, 3, requires_grad=True)
    y = model(x)
    F.relu_(y)
    y.sum().backward()
    assert x.grad is not None


class Digits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(36, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 3))
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.head(self.features(x)), y)
        self.losses.append(loss.item())
        return loss

    def on_after_backward(self):
        if isinstance(self.trainer.strategy, bl.BPPSAStrategy):
            assert [cell for cell, *_ in self.trainer.strategy.scans] == ["layers", "layers"]

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


@pytest.mark.parametrize("algorithm", ["linear", "blelloch"])
def test_trains_under_the_strategy_as_without_it(algorithm):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 1, 8, 8, generator=generator)
    y = torch.randint(3, (32,), generator=generator)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    stock = fit("auto", Digits, loader=loader, max_steps=8)
    ours = fit(bl.BPPSAStrategy(algorithm), Digits, loader=loader, max_steps=8)
    assert ours.losses == pytest.approx(stock.losses, rel=1e-5) and len(ours.losses) == 8
    assert algorithm in ours.trainer.strategy.explanation
    assert all("forward" not in m.__dict__ for m in ours.modules())


def test_compiled_models_take_pytorch_s_path():
    torch._dynamo.reset()
    stock, ours, (chain,) = pair(lenet, "blelloch", 2)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert relative_error(compiled(x), stock(x)) < 1e-12 and chain.calls == 0
