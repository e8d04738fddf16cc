"""The same nn.RNN twice, as PyTorch made it and attached; what a loss may read of it.

T steps, B batch, H state, I input.
"""

import copy

import torch
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.chain import named_chains
from support.helpers import B, H, I, T, assert_close, assert_identical

ALGORITHMS = ("auto", "linear", "chunked", "blelloch")
LAYOUTS = ("steps first", "batch first", "unbatched")
EXACT = 1e-10
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
# What a loss may read: (output, h_n, the dimension of time) -> scalar.
LOSSES = {
    "all outputs": lambda output, hn, time: output.square().sum(),
    "last output": lambda output, hn, time: output.select(time, -1).square().sum(),
    "h_n": lambda output, hn, time: hn.square().sum(),
    "both": lambda output, hn, time: output.sin().sum() + hn.square().sum(),
    "expanded": lambda output, hn, time: output.sum() + hn.sum(),
}


def twins(*sizes, algorithm="auto", dtype=torch.float64, **settings):
    """The same nn.RNN twice: as PyTorch made it, and attached."""
    torch.manual_seed(1)
    stock = nn.RNN(*(sizes or (I, H)), **settings).to(dtype)
    scanned = copy.deepcopy(stock)
    assert [chain.module for chain in bl.attach(scanned, algorithm)] == [scanned]
    return stock, scanned


def shape_of(layout, features, steps=T, batch=B):
    return {
        "steps first": (steps, batch, features),
        "batch first": (batch, steps, features),
        "unbatched": (steps, features),
    }[layout]


def tensor(*shape, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def f32(*shape):
    return tensor(*shape, dtype=torch.float32)


def state(layout="steps first", batch=B, hidden=H, dtype=torch.float64):
    return tensor(*((1, hidden) if layout == "unbatched" else (1, batch, hidden)), dtype=dtype)


def results(rnn, x, h0=None, loss="both"):
    """Outputs and all gradients of one forward and backward; x and h0 become leaves."""
    x = x.detach().requires_grad_()
    h0 = None if h0 is None else h0.detach().requires_grad_()
    rnn.zero_grad()
    output, hn = rnn(x, h0)
    time = 1 if rnn.batch_first and x.dim() == 3 else 0
    value = LOSSES[loss](output, hn, time)
    if value.requires_grad:
        value.backward()
    found = {"output": output.detach(), "h_n": hn.detach(), "x": x.grad}
    if h0 is not None:
        found["h0"] = h0.grad
    return found | {name: parameter.grad for name, parameter in rnn.named_parameters()}


def assert_scanned(module, calls=1):
    """Every chain of a module scanned so many calls and handed none over."""
    counts = [(chain.calls, chain.fallback_calls) for chain in named_chains(module).values()]
    assert counts and all(count == (calls, 0) for count in counts), counts


def assert_same_as_stock(stock, scanned, *args, tolerance=EXACT, **kwargs):
    assert_close(results(scanned, *args, **kwargs), results(stock, *args, **kwargs), tolerance)
    assert_scanned(scanned)


class Model(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.embed = nn.Linear(I, I)
        self.rnn = nn.RNN(I, H, **settings)
        self.head = nn.Linear(H, 2)

    def forward(self, x):
        output, hn = self.rnn(self.embed(x))
        return self.head(output) + self.head(hn)


def model_twins(**settings):
    torch.manual_seed(0)
    stock = Model(**settings).double()
    scanned = copy.deepcopy(stock)
    bl.attach(scanned)
    return stock, scanned


def step(model, x=None):
    """Gradients of one step."""
    model.zero_grad()
    model(tensor(T, B, I) if x is None else x).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def outcome(call):
    """What a call gave: its tensors, or the type of its error."""
    try:
        result = call()
    except Exception as error:
        return type(error)
    return result


def assert_same_outcome(found, wanted, tolerance=0.0):
    if isinstance(wanted, type):
        assert found is wanted
    else:
        assert not isinstance(found, type), found
        pairs = [dict(enumerate(o)) for o in (found, wanted)]
        assert_close(*pairs, tolerance) if tolerance else assert_identical(*pairs)
