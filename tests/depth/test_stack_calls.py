"""Stacks of layers in use: handed over, hooked, copied, changed in place, trained, compiled."""

import copy
import pickle

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from support.cases import relative_error
from support.helpers import fit
from support.stacks import assert_same, everything, gradients, lenet, pair
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bppsa_lightning as bl


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
    assert unbatched(x[0]).shape == (2, 28, 28) and chain.fallback_calls == 1
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


def test_an_output_changed_in_place_has_the_gradient_of_the_change():
    """A chain keeps its states for itself; PyTorch's layer keeps its output, and refuses."""
    stock = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Tanh())
    ours = copy.deepcopy(stock)
    (chain,) = bl.attach(ours, "linear")
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    (wanted,) = torch.autograd.grad(F.relu(stock(x)).sum(), x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        F.relu_(stock(x)).sum().backward()
    (found,) = torch.autograd.grad(F.relu_(ours(x)).sum(), x)
    assert relative_error(found, wanted) < 1e-6 and wanted.any() and chain.calls == 1


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


@pytest.mark.slow
def test_compiled_models_take_pytorch_s_path():
    torch._dynamo.reset()
    stock, ours, (chain,) = pair(lenet, "blelloch", 2)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert relative_error(compiled(x), stock(x)) < 1e-12 and chain.calls == 0


class Residual(nn.Module):
    """Adds its input to what it makes of it, in place or not."""

    def __init__(self, first, in_place, *others):
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.block = nn.Sequential(first, *others, nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.in_place = in_place

    def forward(self, x):
        x = self.before(x)
        if not self.in_place:
            return self.block(x) + x
        x += self.block(x)
        return x


RESIDUAL = {
    "changes its input": lambda: Residual(nn.ReLU(inplace=True), False),
    "passes it on": lambda: Residual(nn.Identity(), False, nn.Flatten(), nn.SiLU(inplace=True)),
    "drops it": lambda: Residual(nn.Dropout(0.5, inplace=True), False),
    "input changes: relu": lambda: Residual(nn.ReLU(), True),
    "input changes: tanh": lambda: Residual(nn.Tanh(), True),
    "input changes: sigmoid": lambda: Residual(nn.Sigmoid(), True, nn.Identity()),
    "input changes: dropout": lambda: Residual(nn.Dropout(0.5), True),
}


@pytest.mark.parametrize("algorithm", ["linear", "blelloch"])
@pytest.mark.parametrize("make", RESIDUAL.values(), ids=RESIDUAL)
def test_the_input_changes_where_pytorch_changes_it_or_lets_it_be_changed(make, algorithm):
    stock, ours, (chain,) = pair(make, algorithm, 2)
    x = torch.randn(3, 4, dtype=torch.float64)
    assert_same(gradients(ours, x), gradients(stock, x), 1e-12)
    assert chain.calls == 1


PASSING = {
    "to the end": [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Identity(), nn.Flatten()],
    "in evaluation": [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Dropout(0.0)],
    "all": [nn.Identity(), nn.Flatten(), nn.Identity()],
}


@pytest.mark.parametrize("layers", PASSING.values(), ids=PASSING)
def test_an_output_behind_layers_that_pass_it_on_may_be_changed(layers):
    stock = nn.Sequential(*layers).double()
    ours = copy.deepcopy(stock)
    bl.attach(ours, "linear")
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    found, wanted = (torch.autograd.grad(m(x * 1).mul_(2).sum(), x)[0] for m in (ours, stock))
    assert relative_error(found, wanted) < 1e-12


def options():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.AvgPool2d(2),
        nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.BatchNorm2d(4).eval(), nn.Conv2d(4, 2, 1),
    )  # fmt: skip


OPTIONS = [
    (0, {"dilation": 2, "padding": 2}), (0, {"stride": (2, 2)}), (1, {"negative_slope": 0.7}),
    (2, {"kernel_size": 3, "stride": 2, "padding": 1}), (2, {"kernel_size": [2, 4]}),
    (3, {"kernel_size": (1, 2)}), (3, {"divisor_override": 3}), (4, {"approximate": "tanh"}),
    (5, {"output_size": (1, 2)}), (6, {"eps": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize("algorithm", ["linear", "blelloch"])
def test_options_hold_as_they_are_in_a_forward(algorithm):
    stock, ours, _ = pair(options, algorithm, 2)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    for place, changed in OPTIONS:
        outputs = {}
        for model in (stock, ours):  # of the backward the options before
            model.zero_grad()
            outputs[model] = model(x)
            vars(model[place]).update(changed)
        found, wanted = (
            torch.autograd.grad(outputs[m].square().sum(), [*m.parameters()]) for m in (ours, stock)
        )
        for a, b in zip(found, wanted, strict=True):
            assert relative_error(a, b) < 1e-10, changed
        assert_same(gradients(ours, x), gradients(stock, x), 1e-10)


def test_global_hooks_see_every_module():
    stock, ours, (chain,) = pair(lenet, "linear", 0)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    seen = {stock: [], ours: []}
    for model, names in seen.items():
        hook = nn.modules.module.register_module_forward_hook(
            lambda module, *_, names=names: names.append(type(module).__name__)
        )
        with hook:
            gradients(model, x)
    assert seen[ours] == seen[stock] and len(seen[ours]) == 13
    assert "global hook" in chain.reason
