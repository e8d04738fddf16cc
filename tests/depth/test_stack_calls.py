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
