"""Layers and calls that are left to PyTorch: bit for bit its own, with a reason in explain."""

import copy
from functools import partial

import pytest
import torch
from support.helpers import B, H, I, T, assert_close, assert_identical
from support.rnn_twins import (
    EXACT,
    assert_same_outcome,
    assert_scanned,
    f32,
    outcome,
    state,
    tensor,
    twins,
)
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning._replacement import replacement_of

pytestmark = pytest.mark.usefixtures("accelerate_everything")


def with_own_forward():
    """A layer whose forward is the user's, on the instance."""
    rnn = nn.RNN(I, H)
    rnn.__dict__["forward"] = partial(nn.RNN.forward, rnn)
    return rnn


ALONE = {
    "RNNCell": (lambda: nn.RNNCell(I, H), "runs one step at a time; use nn.RNN over"),
    "LSTMCell": (lambda: nn.LSTMCell(I, H), "runs one step at a time; use nn.LSTM over"),
    "GRUCell": (lambda: nn.GRUCell(I, H), "runs one step at a time; use nn.GRU over"),
    "own forward": (with_own_forward, "overrides forward"),
    "Sequential": (
        lambda: nn.Sequential(nn.Linear(I, H), nn.ReLU()),
        "is scanned only on request",
    ),
}


@pytest.mark.parametrize("kind", ALONE)
def test_left_alone_keeps_every_bit_and_is_explained(kind):
    build, reason = ALONE[kind]
    torch.manual_seed(0)
    stock = nn.ModuleDict({"layer": build()})
    model = copy.deepcopy(stock)
    assert bl.attach(model) == []
    assert replacement_of(model["layer"], bl.Chain) is None

    def run(layer):
        x = tensor(B, I) if isinstance(layer, nn.RNNCellBase) else tensor(T, B, I)
        x = x.float().requires_grad_()
        result = layer(x)
        output = result[0] if isinstance(result, tuple) else result
        output.square().sum().backward()
        return {"output": output, "x": x.grad} | {n: p.grad for n, p in layer.named_parameters()}

    assert_identical(run(model["layer"]), run(stock["layer"]))
    [line] = [line for line in bl.explain(model).splitlines() if line.strip().startswith("layer ")]
    assert reason in line


def test_a_subclass_that_keeps_the_forward_is_a_chain():
    class Named(nn.RNN):
        """Adds nothing to the computation."""

    assert [type(chain.module) for chain in bl.attach(Named(I, H))] == [Named]


def call(*args, **kwargs):
    return lambda rnn: rnn(*args, **kwargs)


# The call, and what explain says of it; PyTorch itself is the judge of what should happen.
HANDED_OVER = {
    "input size": (call(f32(T, B, I + 1)), "shapes nn.RNN rejects"),
    "4-D input": (call(f32(1, T, B, I)), "shapes nn.RNN rejects"),
    "1-D input": (call(f32(I)), "shapes nn.RNN rejects"),
    "no steps": (call(f32(0, B, I)), "shapes nn.RNN rejects"),
    "hx of another size": (call(f32(T, B, I), f32(1, B, H + 1)), "shapes nn.RNN rejects"),
    "hx of another batch": (call(f32(T, B, I), f32(1, B + 1, H)), "shapes nn.RNN rejects"),
    "hx of two layers": (call(f32(T, B, I), f32(2, B, H)), "shapes nn.RNN rejects"),
    "2-D hx": (call(f32(T, B, I), f32(B, H)), "shapes nn.RNN rejects"),
    "3-D hx, unbatched": (call(f32(T, I), f32(1, 1, H)), "shapes nn.RNN rejects"),
    "float64 input": (call(tensor(T, B, I)), "dtypes of input, state and weights differ"),
    "float64 hx": (call(f32(T, B, I), tensor(1, B, H)), "dtypes of input, state and weights"),
    "integer input": (call(torch.ones(T, B, I, dtype=torch.int64)), "dtypes of input"),
    "meta input": (call(torch.empty(T, B, I, device="meta")), "on different devices"),
    "a list": (call([[[0.0] * I] * B] * T), "input is a list"),
    "hx a list": (call(f32(T, B, I), [0.0]), "no tensors"),
}  # fmt: skip


@pytest.mark.parametrize("what", HANDED_OVER)
def test_calls_that_cannot_be_scanned_go_to_pytorch(what):
    run, reason = HANDED_OVER[what]
    stock, scanned = twins(dtype=torch.float32)
    wanted, found = (outcome(lambda rnn=rnn: run(rnn)) for rnn in (stock, scanned))
    assert_same_outcome(found, wanted)
    chain = scanned.forward
    assert (chain.calls, chain.fallback_calls) == (0, 1)
    assert reason in chain.reason and chain.reason in bl.explain(scanned)
    assert "0 of 1 calls accelerated; last fallback: " in bl.explain(scanned)
    scanned(f32(T, B, I))
    assert (chain.calls, chain.fallback_calls) == (1, 1)
    assert "1 of 2 calls accelerated; last fallback: " in bl.explain(scanned)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((f32(T, B, I), None, None), {}), ((f32(T, B, I),), {"state": None})],
)
def test_a_wrong_signature_is_the_same_error(args, kwargs):
    stock, scanned = twins(dtype=torch.float32)
    found, wanted = (outcome(lambda rnn=rnn: rnn(*args, **kwargs)) for rnn in (scanned, stock))
    assert found is wanted is TypeError


def test_arguments_by_name():
    stock, scanned = twins()
    found, wanted = (
        dict(enumerate(rnn(hx=state(), input=tensor(T, B, I)))) for rnn in (scanned, stock)
    )
    assert_close(found, wanted, EXACT)
    assert_scanned(scanned)
