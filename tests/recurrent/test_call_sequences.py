"""One attached layer, called in one way after another: what a call leaves behind hurts no other."""

import copy
import pickle
import random

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl

KINDS = (nn.RNN, nn.GRU, nn.LSTM)
LONG = 700  # steps, which are walked in windows where that is asked for


def tensors(result):
    output, state = result
    return [output, *(state if isinstance(state, tuple) else (state,))]


def train(layers, x):
    """Outputs and gradients of both."""
    return gradients(layers, x, lambda layer, x: tuple(tensors(layer(x))))


def train_from_a_checkpoint(layers, x):
    return gradients(
        layers, x, lambda layer, x: checkpoint(lambda t: tensors(layer(t)), x, use_reentrant=False)
    )


def train_in_two_calls(layers, x):
    return gradients(layers, x, lambda layer, x: [*tensors(layer(x)), *tensors(layer(x / 2))])


def gradients(layers, x, call):
    found = []
    for layer in layers:
        layer.zero_grad()
        leaf = x.clone().requires_grad_()
        results = call(layer, leaf)
        sum(t.square().sum() for t in results).backward()
        found.append([*results, leaf.grad, *(p.grad for p in layer.parameters())])
    return found


def without_gradients(layers, x):
    with torch.no_grad():
        return [tensors(layer(x)) for layer in layers]


def in_inference_mode(layers, x):
    with torch.inference_mode():
        x = x.clone()
        return [tensors(layer(x)) for layer in layers]


CALLS = [train, train_from_a_checkpoint, train_in_two_calls, without_gradients, in_inference_mode]


def freeze(layers, rng):
    place, wanted = rng.randrange(4), rng.random() < 0.5
    for layer in layers:
        list(layer.parameters())[place].requires_grad_(wanted)
    return layers


def copied(layers, rng):
    if rng.random() < 0.5:
        return [pickle.loads(pickle.dumps(layer)) for layer in layers]
    return [copy.deepcopy(layer) for layer in layers]


def other_weights(layers, rng):
    new = {name: t + torch.randn_like(t) / 50 for name, t in layers[0].state_dict().items()}
    for layer in layers:
        layer.load_state_dict(new)
    return layers


def attached_anew(layers, rng):
    bl.detach(layers[1])
    bl.attach(layers[1], rng.choice(["auto", "speculative", "chunked"]))
    return layers


CHANGES = [freeze, copied, other_weights, attached_anew]


@pytest.mark.parametrize("seed", range(24))
def test_each_call_is_as_pytorchs(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    I, H = rng.choice([1, 4]), rng.choice([3, 8, 20])
    options = {"num_layers": rng.choice([1, 2]), "bidirectional": rng.random() < 0.3}
    stock = rng.choice(KINDS)(I, H, **options).double()
    layers = [stock, copy.deepcopy(stock)]
    bl.attach(layers[1], rng.choice(["auto", "speculative", "speculative", "linear"]))
    done = []
    for _ in range(8):
        if rng.random() < 0.3:
            change = rng.choice(CHANGES)
            done.append(change.__name__)
            layers = change(layers, rng)
            continue
        call, (T, B) = rng.choice(CALLS), rng.choice([(1, 1), (2, 5), (40, 2), (LONG, 1)])
        done.append((call.__name__, T, B))
        expected, found = call(layers, torch.randn(T, B, I, dtype=torch.float64))
        for one, other in zip(expected, found, strict=True):
            assert (one is None) == (other is None), done
            if one is not None:
                torch.testing.assert_close(other, one, rtol=1e-7, atol=1e-7, msg=str(done))
