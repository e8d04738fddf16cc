"""Small networks that are stacks of layers, stock and attached, and their gradients."""

import torch
from torch import nn

import bppsa_lightning as bl
from support.cases import relative_error


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
    "vgg": (lambda: VGG(1 / 32), (2, 3, 32, 32)),
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
