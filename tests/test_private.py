"""What becomes of Opacus when it is imported; its own classes are in tests/third_party."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning import private
from bppsa_lightning.recurrent.sampled import wanted_by

I, H = 3, 4


class Hooks:
    """As Opacus' GradSampleHooks, as far as it is used."""

    hooks_enabled = grad_accumulation_allowed = True
    loss_reduction = "mean"

    def iterate_submodules(self, module):
        if next(module.parameters(recurse=False), None) is not None:
            yield module
        for child in module.children():
            yield from self.iterate_submodules(child)

    def capture_backprops_hook(self):
        pass


def promote(p):
    p.grad_sample = p._current_grad_sample if p.grad_sample is None else [p.grad_sample, 0]
    del p._current_grad_sample


@pytest.fixture
def opacus():
    kind = type("Hooks", (Hooks,), {"capture_backprops_hook": lambda self: None})
    found = SimpleNamespace(GradSampleHooks=kind, promote_current_grad_sample=promote)
    private.leave_out_attached(found)
    return found


def model():
    module = nn.Sequential(nn.Linear(I, I), nn.GRU(I, H)).double()
    bl.attach(module)
    for p in module.parameters():
        p.grad_sample, p._forward_counter = None, 0
    return module


def test_attached_layers_are_left_out_of_hooks_and_keep_gradients_themselves(opacus):
    module, hooks, x = model(), opacus.GradSampleHooks(), torch.ones(5, 2, I).double()
    assert list(hooks.iterate_submodules(module)) == [module[0]]
    module(x)[0].sum().backward()
    weight = module[1].weight_hh_l0
    assert weight.grad_sample.shape == (2, *weight.shape) and weight._forward_counter == 0
    torch.testing.assert_close(weight.grad_sample.mean(0), weight.grad)  # of a mean of B losses


def test_two_calls_of_one_batch_are_added_up(opacus):
    module, hooks, x = model(), opacus.GradSampleHooks(), torch.ones(5, 2, I).double()
    list(hooks.iterate_submodules(module))
    (module(x)[0].sum() + module(2 * x)[0].sum()).backward()
    weight = module[1].weight_ih_l0
    torch.testing.assert_close(weight.grad_sample.mean(0), weight.grad)


def test_nothing_is_kept_while_hooks_are_off_or_in_evaluation(opacus):
    module, hooks, x = model(), opacus.GradSampleHooks(), torch.ones(5, 2, I).double()
    list(hooks.iterate_submodules(module))
    hooks.hooks_enabled = False
    module(x)[0].sum().backward()
    hooks.hooks_enabled = True
    module.eval()(x)[0].sum().backward()
    assert module[1].weight_hh_l0.grad_sample is None


def test_accumulation_that_opacus_forbids_is_an_error(opacus):
    module, hooks, x = model(), opacus.GradSampleHooks(), torch.ones(5, 2, I).double()
    list(hooks.iterate_submodules(module))
    hooks.grad_accumulation_allowed = False
    module(x)[0].sum().backward()
    with pytest.raises(ValueError, match="Poisson sampling"):
        module(x)[0].sum().backward()


def test_ghost_clipping_is_refused(opacus):
    ghost = type("Ghost", (opacus.GradSampleHooks,), {"capture_backprops_hook": lambda self: None})
    with pytest.raises(NotImplementedError, match="grad_sample_mode: found that of Ghost"):
        list(ghost().iterate_submodules(model()))


def test_layers_that_are_not_attached_are_opacus_own_affair(opacus):
    module = nn.RNN(I, H)
    assert list(opacus.GradSampleHooks().iterate_submodules(module)) == [module]
    assert module not in wanted_by


def test_the_validator_accepts_what_is_attached():
    known = {nn.LSTM: lambda module: ["refused"], nn.GRU: lambda module: ["refused"]}
    private.accept_attached(SimpleNamespace(ModuleValidator=SimpleNamespace(VALIDATORS=known)))
    layer = nn.LSTM(I, H)
    assert known[nn.LSTM](layer) == ["refused"]
    bl.attach(layer)
    assert known[nn.LSTM](layer) == []
    bl.detach(layer)
    assert known[nn.LSTM](layer) == ["refused"]
