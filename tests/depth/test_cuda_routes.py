"""Where an attached stack's call on CUDA goes: on tensors that only claim to be there.

No number is computed; operators and PyTorch's own refuse to mix devices, and all shapes are known.
"""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import bppsa_lightning as bl
from bppsa_lightning import jacobians as J
from bppsa_lightning.depth import layers
from bppsa_lightning.depth.stack import _Run
from bppsa_lightning.jacobians import cache
from bppsa_lightning.jacobians import device_copies as devices
from bppsa_lightning.ops import layers as scans


@pytest.fixture(autouse=True)
def kernels_and_no_numbers(monkeypatch):
    """As if built with CUDA; what the host reads from the GPU is that all is well."""
    monkeypatch.setattr(devices, "HAS_CUDA_KERNELS", True)
    monkeypatch.setattr(scans, "_in_range", lambda product: True)
    monkeypatch.setattr(layers._Weighted, "_fits", lambda self, weight: True)
    cache.patterns.clear()
    yield
    cache.patterns.clear()  # of copies without numbers


def stack():
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.SiLU(),
        nn.BatchNorm2d(4).eval(), nn.AvgPool2d(2), nn.GELU(), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(4 * 3 * 3, 5), nn.Tanh(), nn.Linear(5, 3),
    )  # fmt: skip


def moved(module, mode):
    """The module, its tensors on a GPU that is not there."""
    for own in module.modules():
        for tensors in (own._parameters, own._buffers):
            for name, tensor in tensors.items():
                there = mode.from_tensor(tensor.detach()).to("cuda")
                tensors[name] = nn.Parameter(there) if tensors is own._parameters else there
    return module


@pytest.mark.parametrize("algorithm, levels", [("linear", 0), ("blelloch", 2), ("blelloch", 9)])
@pytest.mark.parametrize("needs_x", [True, False])
def test_a_stack_on_cuda_is_scanned_there(algorithm, levels, needs_x):
    model = stack()
    (chain,) = bl.attach(model, algorithm)
    chain.levels = levels
    x = torch.randn(3, 2, 16, 16, requires_grad=needs_x)
    model(x).sum().backward()  # patterns and plans, on the CPU
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        moved(model, mode)
        y = model(x.detach().to("cuda").requires_grad_(needs_x))
        with torch.no_grad():  # the engine itself would ask for the device
            _, _, _, _, *grads = _Run.backward(y.grad_fn, torch.ones_like(y))
    assert (chain.calls, chain.handed_over) == (2, 0) and y.device.type == "cuda"
    assert (grads[0] is not None) == needs_x
    sizes = [x.shape, *(p.shape for p in model.parameters())]
    for grad, size in zip(grads, sizes, strict=True):
        assert grad is None or (grad.shape, grad.device.type) == (size, "cuda")
    assert sum(grad is None for grad in grads) == (not needs_x)


MADE = {
    "relu": lambda t: J.relu(t),
    "gelu": lambda t: J.gelu(t),
    "max_pool2d": lambda t: J.max_pool2d(t, 2, 1),
    "flatten": lambda t: J.flatten(t.shape, device=t.device),
    "dropout": lambda t: J.dropout(t > 0),
    "batch_norm": lambda t: J.batch_norm((2, 5), t[0, :, 0, 0]),
}


@pytest.mark.parametrize("name", MADE)
def test_jacobians_are_made_where_their_numbers_are(name, monkeypatch):
    MADE[name](torch.ones(3, 2, 4, 4))  # the pattern, on the CPU
    monkeypatch.setattr(torch, "sparse_csr_tensor", lambda *parts, **_: parts)  # has no fake
    with FakeTensorMode(allow_non_fake_inputs=True):
        parts = MADE[name](torch.ones(3, 2, 4, 4, device="cuda"))[:3]
        assert all(part.device.type == "cuda" for part in parts)
