"""RNN, GRU and LSTM of `bl.nn` beside those of torch.nn: parameters, arguments, results, errors."""

import copy
import io
import pickle
import re

import pytest
import torch
from support.cases import relative_error
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_sequence

import bppsa_lightning as bl

F64 = {"dtype": torch.float64}
CASES = [
    ("RNN", {}),
    ("RNN", {"nonlinearity": "relu", "num_layers": 2, "bias": False}),
    ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("LSTM", {"num_layers": 2, "dropout": 0.5}),
    ("LSTM", {"proj_size": 3, "bidirectional": True}),
]
every_case = pytest.mark.parametrize("name, options", CASES)
every_name = pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])


def pair(name, options, **more):
    """PyTorch's, and ours with its weights."""
    stock = getattr(nn, name)(4, 5, **options, **(more or F64))
    ours = getattr(bl.nn, name)(4, 5, **options, **(more or F64))
    ours.load_state_dict(stock.state_dict())
    return stock, ours


def flat(results):
    output, last = results
    data = output.data if isinstance(output, nn.utils.rnn.PackedSequence) else output
    return [data, *(last if isinstance(last, tuple) else (last,))]


def assert_alike(found, wanted, tolerance=1e-12):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert relative_error(a, b) <= tolerance


@every_case
def test_the_same_seed_draws_the_same_parameters(name, options):
    torch.manual_seed(3)
    stock = getattr(nn, name)(4, 5, **options)
    torch.manual_seed(3)
    ours = getattr(bl.nn, name)(4, 5, **options)
    wanted, found = stock.state_dict(), ours.state_dict()
    assert list(found) == list(wanted)
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


@every_case
def test_checkpoints_go_both_ways(name, options):
    stock, ours = pair(name, options)
    nn.init.normal_(ours.weight_hh_l0)
    stock.load_state_dict(ours.state_dict())
    x = torch.randn(6, 3, 4, **F64)
    stock.eval(), ours.eval()
    assert_alike(flat(ours(x)), flat(stock(x)))


@every_case
@pytest.mark.parametrize("layout", ["batched", "one", "packed"])
def test_results_and_gradients_are_pytorchs(name, options, layout):
    stock, ours = pair(name, options)
    stock.eval(), ours.eval()
    x = torch.randn(6, 3, 4, requires_grad=True, **F64)
    inputs = {
        "batched": lambda: x, "one": lambda: x[:, 0],
        "packed": lambda: pack_sequence([x[:4, 0], x[:, 1], x[:2, 2]], enforce_sorted=False),
    }  # fmt: skip
    results = []
    for module in (ours, stock):
        parts = flat(module(inputs[layout]()))
        total = sum((part * torch.arange(part.numel()).view_as(part).sin()).sum() for part in parts)
        results.append([*parts, *torch.autograd.grad(total, [x, *module.parameters()])])
    assert_alike(*results)


@every_name
def test_a_layer_of_pytorchs_is_taken_over_with_its_parameters(name):
    options = {"num_layers": 2, "batch_first": True} | ({"proj_size": 2} if name == "LSTM" else {})
    stock = getattr(nn, name)(4, 5, **options).eval()
    ours = getattr(bl.nn, name).from_torch(stock, reset_to="initial")
    assert all(a is b for a, b in zip(ours.parameters(), stock.parameters(), strict=True))
    assert not ours.training and ours.reset_to == "initial"
    x = torch.randn(3, 6, 4)
    assert_alike(flat(ours(x)), flat(stock(x)), 1e-5)
    with pytest.raises(TypeError, match=f"layer: found Linear, wanted a torch.nn.{name}"):
        getattr(bl.nn, name).from_torch(nn.Linear(1, 1))


# Arguments of the constructor, and calls of the module.
WRONG_OPTIONS = [
    {"dropout": 2}, {"dropout": True}, {"hidden_size": 0}, {"hidden_size": 2.0}, {"num_layers": 0},
    {"input_size": 0}, {"bias": 1}, {"batch_first": 0}, {"proj_size": 5}, {"proj_size": -1},
]  # fmt: skip


@every_name
@pytest.mark.parametrize("wrong", WRONG_OPTIONS, ids=str)
def test_options_are_refused_as_by_pytorch(name, wrong):
    arguments = {"input_size": 4, "hidden_size": 5} | wrong
    with pytest.raises((TypeError, ValueError, RuntimeError)) as wanted:
        getattr(nn, name)(**arguments)
    with pytest.raises(wanted.type, match=re.escape(str(wanted.value)[:30])):
        getattr(bl.nn, name)(**arguments)


def test_an_unknown_nonlinearity_is_refused_and_its_place_is_the_fourth():
    with pytest.raises(ValueError, match="Unknown nonlinearity 'gelu'"):
        bl.nn.RNN(4, 5, nonlinearity="gelu")
    assert bl.nn.RNN(4, 5, 1, "relu").nonlinearity == nn.RNN(4, 5, 1, "relu").nonlinearity


def test_a_dropout_that_does_nothing_is_warned_of():
    with pytest.warns(UserWarning, match="expects num_layers greater than 1"):
        bl.nn.GRU(4, 5, dropout=0.5)


def wrong_calls(name):
    x, h = torch.randn(6, 3, 4, **F64), torch.randn(1, 3, 5, **F64)
    yield from ((x[0, 0],), (x[None],), (x[..., :3],), (x.float(),), (x[:0],))
    for wrong in (h[:, :2], h[0], h.repeat(2, 1, 1)):
        yield (x, wrong if name != "LSTM" else (h, wrong))
    yield (x[:, 0], h if name != "LSTM" else (h, h))


@every_name
def test_calls_are_refused_as_by_pytorch(name):
    stock, ours = pair(name, {})
    for arguments in wrong_calls(name):
        with pytest.raises((TypeError, ValueError, RuntimeError)) as wanted:
            stock(*arguments)
        with pytest.raises(wanted.type) as found:
            ours(*arguments)
        # (Of some errors PyTorch's modules have two endings.)
        assert str(found.value)[:34] == str(wanted.value)[:34]


@every_name
def test_what_is_no_tensor_is_refused(name):
    module = getattr(bl.nn, name)(4, 5)
    with pytest.raises(TypeError, match="input: found list, wanted a tensor or a PackedSequence"):
        module([1.0])
    with pytest.raises(TypeError, match="hx: found str, wanted a"):
        module(torch.randn(2, 3, 4), "zeros")
    with pytest.raises(RuntimeError, match="hidden tensors are not the same dtype"):
        h = torch.zeros(1, 3, 5, **F64)
        module(torch.randn(2, 3, 4), (h, h) if name == "LSTM" else h)
    with pytest.raises(RuntimeError, match="not at the same device"):
        module(torch.empty(2, 3, 4, device="meta"))


@every_name
def test_copies_and_pickles_are_the_same_module(name):
    module = getattr(bl.nn, name)(4, 5, num_layers=2, zoneout=0.1).eval()
    x = torch.randn(6, 3, 4)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert_alike(flat(other(x)), flat(module(x)), 0)
        assert not {id(p) for p in other.parameters()} & {id(p) for p in module.parameters()}


def test_swapped_and_parametrized_weights_are_used():
    module, x = bl.nn.GRU(4, 5, **F64), torch.randn(6, 3, 4, **F64)
    double = {name: 2 * p for name, p in module.named_parameters()}
    swapped = functional_call(module, double, (x,))
    parametrizations.weight_norm(module, "weight_hh_l0")
    before = module(x)[0]
    with torch.no_grad():
        module.parametrizations.weight_hh_l0.original0.mul_(2)
    assert not torch.allclose(module(x)[0], before)
    with torch.no_grad():
        module.parametrizations.weight_hh_l0.original0.div_(2)
        for name, p in module.named_parameters():
            if "weight_hh" not in name:
                p.mul_(2)
        module.parametrizations.weight_hh_l0.original0.mul_(2)
    assert_alike([module(x)[0]], [swapped[0]])


@every_name
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_the_float32_recurrence_rounded_once(name, dtype):
    stock, ours = pair(name, {}, dtype=dtype)
    x = torch.randn(6, 3, 4, dtype=dtype)
    truth = flat(stock.double()(x.double()))
    assert_alike(flat(ours(x)), [t.to(dtype) for t in truth], 2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("zoneout", [0.0, 0.1])
def test_autocast_computes_in_float32_and_returns_its_dtype(zoneout):
    module, x = bl.nn.RNN(4, 5, zoneout=zoneout).eval(), torch.randn(6, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found = flat(module(x))
    assert_alike(found, [t.bfloat16() for t in flat(module(x))], 0)


def test_second_derivatives():
    module = bl.nn.GRU(2, 3, **F64)
    x = torch.randn(4, 2, 2, requires_grad=True, **F64)
    reset = torch.tensor([[0, 1], [1, 0], [0, 0], [0, 1]], dtype=torch.bool)
    assert torch.autograd.gradgradcheck(lambda x: module(x, None, reset)[0], x)


def test_torch_compile_makes_one_graph_and_leaves_masks_out():
    module, x, graphs = bl.nn.LSTM(4, 5), torch.randn(6, 3, 4), []

    def counting(graph, _):
        graphs.append(graph)
        return graph.forward

    reset = torch.rand(6, 3) < 0.5
    found = torch.compile(module, fullgraph=True, backend=counting)(x)
    assert len(graphs) == 1
    assert_alike(flat(found), flat(module(x)), 1e-6)
    found = torch.compile(module, backend=counting)(x, None, reset)
    assert_alike(flat(found), flat(module(x, None, reset)), 1e-6)
    assert len(graphs) == 1
