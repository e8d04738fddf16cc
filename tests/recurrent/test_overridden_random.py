"""Random subclasses that override forward, attached and not: the same results, all gradients.

BPPSA_OVERRIDDEN_CASES=5000 pytest -s tests/recurrent/test_overridden_random.py runs more.
"""

import copy
import os
import random

import pytest
import torch
from support.cases import relative_error
from torch import nn
from torch.nn.utils import rnn as rnn_utils

import bppsa_lightning as bl

CASES = int(os.environ.get("BPPSA_OVERRIDDEN_CASES", "300"))
BATCHES = 10
pytestmark = pytest.mark.usefixtures("accelerate_everything")

BASES = (nn.RNN, nn.GRU, nn.LSTM)


def scaled(states, factor):
    """h, or h and c."""
    if states is None:
        return None
    return tuple(factor * s for s in states) if isinstance(states, tuple) else factor * states


def on_data(change):
    """A change of a tensor, for packed sequences too."""

    def changed(input):
        if isinstance(input, rnn_utils.PackedSequence):
            return input._replace(data=change(input.data))
        return change(input)

    return changed


# Each: what a class does in its forward. `run` is its super().forward.
def once(run, layer, input, hx):
    return run(input, hx)


def changed_input(run, layer, input, hx):
    return run(on_data(torch.tanh)(input), hx=hx)


def other_states(run, layer, input, hx):
    return run(input, scaled(hx, 0.5))


def no_states(run, layer, input, hx):
    return run(input)


def twice(run, layer, input, hx):
    first, states = run(input, hx)
    second, last = run(on_data(torch.sin)(input), scaled(states, -1.0))
    return on_data(lambda data: data + data_of(first))(second), last


def three_times(run, layer, input, hx):
    states = hx
    for _ in range(3):
        output, states = run(input, states)
    return output, states


def in_a_branch(run, layer, input, hx):
    if float(data_of(input).detach().sum()) > 0:
        return run(input, hx)
    return run(on_data(torch.neg)(input), None)


def backwards(run, layer, input, hx):
    if isinstance(input, rnn_utils.PackedSequence):
        return run(input, hx)
    time = 1 if layer.batch_first and input.dim() == 3 else 0
    output, states = run(input.flip(time), hx)
    return output.flip(time), states


def residual(run, layer, input, hx):
    output, states = run(input, hx)
    gate = data_of(input).mean(-1, keepdim=True)
    return on_data(lambda data: data * 2 + gate)(output), states


def first_without_gradient(run, layer, input, hx):
    with torch.no_grad():
        _, states = run(input, hx)
    return run(input, states)


FORWARDS = (
    once, changed_input, other_states, no_states, twice, three_times, in_a_branch, backwards,
    residual, first_without_gradient,
)  # fmt: skip


def data_of(value):
    return value.data if isinstance(value, rnn_utils.PackedSequence) else value


def random_class(base, draw):
    """A subclass of one to three levels, perhaps with a mixin, each of which calls super()."""
    kind = base
    for _ in range(draw.choice((1, 1, 2, 3))):
        body = draw.choice(FORWARDS[:3]) if kind is not base else draw.choice(FORWARDS)
        kind = draw.choice((subclass, with_mixin))(kind, body)
    return kind


def subclass(base, body):
    class Layer(base):
        def forward(self, input, hx=None):
            return body(super().forward, self, input, hx)

    return Layer


def with_mixin(base, body):
    class Mixin:
        def forward(self, input, hx=None):
            return body(super().forward, self, input, hx)

    return type("Layer", (Mixin, base), {})


def random_case(seed):
    """A module, and what it is called with."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    base = draw.choice(BASES)
    I, H, layers = draw.randint(1, 4), draw.randint(2, 6), draw.choice((1, 1, 2, 3))
    settings = {"nonlinearity": draw.choice(("tanh", "relu"))} if base is nn.RNN else {}
    if base is nn.LSTM and draw.random() < 0.4:
        settings["proj_size"] = draw.randint(1, H - 1)
    module = random_class(base, draw)(
        I, H, num_layers=layers, bidirectional=draw.random() < 0.4, bias=draw.random() < 0.8,
        batch_first=draw.random() < 0.5, **settings,
    ).double()  # fmt: skip
    T, B = draw.choice((1, 2, 5, 9, 17)), draw.randint(1, 4)
    layout = draw.choice(("batch", "batch", "packed", "unbatched"))
    shape = {"unbatched": (T, I), "packed": (T, B, I)}.get(
        layout, (B, T, I) if module.batch_first else (T, B, I)
    )
    leaves = {"x": torch.randn(shape, dtype=torch.float64, requires_grad=draw.random() < 0.9)}
    if draw.random() < 0.6:
        L, batch = layers * (1 + module.bidirectional), () if layout == "unbatched" else (B,)
        for name in ("h0", "c0") if base is nn.LSTM else ("h0",):
            size = module.proj_size or H if name == "h0" else H
            leaves[name] = torch.randn(L, *batch, size, dtype=torch.float64, requires_grad=True)
    lengths = [draw.randint(1, T) for _ in range(B)] if layout == "packed" else None
    return module, leaves, lengths


def results(module, leaves, lengths, seed):
    """All that is returned, and all gradients of a random weighting of it."""
    leaves = {
        name: leaf.detach().requires_grad_(leaf.requires_grad) for name, leaf in leaves.items()
    }
    x, states = leaves["x"], tuple(leaves[name] for name in ("h0", "c0") if name in leaves)
    if lengths is not None:
        x = rnn_utils.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    hx = None if not states else states if len(states) == 2 else states[0]
    output, last = module(x, hx)
    found = dict(enumerate((data_of(output), *(last if isinstance(last, tuple) else (last,)))))
    torch.manual_seed(seed)
    sum((value * torch.randn_like(value)).sum() for value in found.values()).backward()
    found = {name: value.detach() for name, value in found.items()}
    named = {**leaves, **dict(module.named_parameters())}
    return found | {f"gradient of {name}": leaf.grad for name, leaf in named.items()}


def wrong(seed):
    """What is wrong in a case; None if nothing is."""
    stock, leaves, lengths = random_case(seed)
    module = copy.deepcopy(stock)
    [chain] = bl.attach(
        module, random.Random(seed).choice(("auto", "linear", "chunked", "blelloch"))
    )
    wanted, found = (results(m, leaves, lengths, seed) for m in (stock, module))
    if not chain.calls or chain.fallback_calls:
        return f"{seed}: {chain.calls} scanned, {chain.fallback_calls} not: {chain.last_fallback}"
    for name, want in wanted.items():
        have = found[name]
        if (have is None) != (want is None):
            return f"{seed}: {name}: found {have}, wanted {want}"
        if want is not None and not relative_error(have, want) < 1e-9:
            return f"{seed}: {name}: relative error {relative_error(have, want):.1e}"
    bl.detach(module)
    return None if type(module) is type(stock) else f"{seed}: detach left {type(module)}"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_subclasses(batch):
    seeds = range(batch, CASES, BATCHES)
    mistakes = [mistake for seed in seeds if (mistake := wrong(seed)) is not None]
    print(f"{len(seeds)} cases, {len(mistakes)} wrong")
    assert not mistakes, "\n".join(mistakes)
