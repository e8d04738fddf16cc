"""What PyTorch refuses is refused alike; what is left to PyTorch is left to it with a reason."""

import pytest
import torch
from support.recurrent_modules import F32, F64, assert_same, pack, pair, run_or_error, tensor
from torch.nn.utils import rnn as rnn_utils

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.recurrent import support

pytestmark = pytest.mark.usefixtures("accelerate_everything")


def states(*batch, layers=1, hidden=4, dtype=F64):
    return tensor(layers, *batch, hidden).to(dtype), tensor(layers, *batch, hidden).to(dtype)


def bad_packed(data=(6, 3), sizes=(3, 2, 1)):
    return rnn_utils.PackedSequence(tensor(*data), torch.tensor(sizes))


BAD_CALLS = {
    "features": (tensor(5, 2, 4), None),
    "dimensions": (tensor(1, 5, 2, 3), None),
    "a vector": (tensor(3), None),
    "no steps": (tensor(0, 2, 3), None),
    "dtype": (tensor(5, 2, 3).float(), None),
    "integers": (torch.ones(5, 2, 3, dtype=torch.int64), None),
    "a list": ([[0.0]], None),
    "batch of the state": (tensor(5, 2, 3), states(3)),
    "layers of the state": (tensor(5, 2, 3), states(2, layers=2)),
    "size of the state": (tensor(5, 2, 3), states(2, hidden=5)),
    "dtype of the state": (tensor(5, 2, 3), states(2, dtype=F32)),
    "dimensions of the state": (tensor(5, 2, 3), states()),
    "unbatched, batched state": (tensor(5, 3), states(1)),
    "features of packed data": (bad_packed(data=(6, 4)), None),
    "no rows for packed steps": (bad_packed(data=(5, 3)), None),
    "packed state": (bad_packed(), states(2)),
    "state of no tensors": (tensor(5, 2, 3), (1, 2)),
}


@pytest.mark.parametrize("what", BAD_CALLS)
@pytest.mark.parametrize("cell", ["RNN-tanh", "GRU", "LSTM"])
def test_bad_calls_raise_what_pytorch_raises(cell, what):
    stock, module = pair(cell)
    x, hx = BAD_CALLS[what]
    hx = hx if hx is None or cell == "LSTM" else hx[0]
    wanted, found = (run_or_error(m, x, hx, None) for m in (stock, module))
    assert isinstance(wanted, type) and found is wanted
    assert module.forward.fallback_calls == 1 and module.forward.reason


@pytest.mark.parametrize("hx", [states(2)[0], states(2)[:1], (*states(2), states(2)[0]), states])
def test_states_that_are_no_pair(hx):
    stock, module = pair("LSTM")
    wanted, found = (run_or_error(m, tensor(5, 2, 3), hx, None) for m in (stock, module))
    assert isinstance(wanted, type) and found is wanted


def test_states_as_a_list():
    stock, module = pair("LSTM")
    assert_same(stock, module, tensor(5, 2, 3), list(states(2)))


def test_the_planner_may_leave_a_call_to_pytorch(monkeypatch):
    asked = []

    def fallback_reason(request):
        asked.append(request)
        return "PyTorch's kernel is faster for 5 steps" if request.T == 5 else None

    monkeypatch.setattr(planner, "fallback_reason", fallback_reason)
    stock, module = pair("GRU", num_layers=2, bidirectional=True)
    x = tensor(5, 2, 3)
    assert torch.equal(module(x)[0], stock(x)[0])
    chain = module.forward
    assert (chain.calls, chain.fallback_calls, chain.shape) == (0, 1, None)
    assert "0 of 1 calls accelerated; last fallback: PyTorch's kernel is faster" in bl.explain(
        module
    )
    with torch.no_grad():
        module(pack(tensor(7, 2, 3), [7, 3]))
    assert (chain.calls, chain.fallback_calls, chain.reason) == (1, 1, None)
    cpu = torch.device("cpu")
    sizes = {"I": 3, "layers": 2, "directions": 2}
    assert asked == [
        planner.Request("gru", 5, 2, 4, cpu, **sizes),
        planner.Request("gru", 7, 2, 4, cpu, total_steps=10, padded_steps=7, **sizes),
    ]
    # The same size again: not asked again.
    assert torch.equal(module(x)[0], stock(x)[0])
    assert (chain.calls, chain.fallback_calls, len(asked)) == (1, 2, 2)
    assert chain.reason == "PyTorch's kernel is faster for 5 steps"


def test_a_device_without_kernels_is_left_to_pytorch(monkeypatch):
    missing = "missing_recurrent_kernels"
    monkeypatch.setattr(support, missing, lambda device: f"none on {device}")
    stock, module = pair("LSTM")
    assert torch.equal(module(tensor(5, 2, 3))[0], stock(tensor(5, 2, 3))[0])
    assert "0 of 1 calls accelerated; last fallback: none on cpu" in bl.explain(module)
