"""Every option of nn.RNN, nn.GRU and nn.LSTM, attached, against PyTorch's own.

Options meet in pairs: each value of each option with each value of every other, in as few cases
as a greedy choice finds. T steps, B batch, I input, H hidden, P state that is shown.
"""

import copy
import itertools
import pickle

import pytest
import torch
from support.cases import relative_error
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils import rnn as rnn_utils

import bppsa_lightning as bl
from bppsa_lightning import ops, planner
from bppsa_lightning.attach import attached
from bppsa_lightning.recurrent import packed

EXACT = 1e-10

CELLS = {
    "RNN-tanh": (nn.RNN, {"nonlinearity": "tanh"}),
    "RNN-relu": (nn.RNN, {"nonlinearity": "relu"}),
    "GRU": (nn.GRU, {}),
    "LSTM": (nn.LSTM, {}),
    "LSTM projected": (nn.LSTM, {"proj_size": 1}),
}

SIZES = {  # T, B, I, H
    "some": (7, 5, 3, 4),
    "one step": (1, 3, 2, 3),
    "one sample": (6, 1, 2, 3),
    "ones": (1, 1, 1, 2),
    "one state": (5, 3, 1, 1),
    "wide": (4, 2, 9, 17),
}

# The lengths of a batch, of a largest T and B samples.
LENGTHS = {
    "falling": lambda T, B: [max(1, T - 2 * b) for b in range(B)],
    "any order": lambda T, B: [1 + (3 * b + T - 1) % T for b in range(B)],
    "all equal": lambda T, B: [T] * B,
    "one long": lambda T, B: [1] * (B - 1) + [40 * T],  # padding would be most of it
}

OPTIONS = {
    "cell": list(CELLS),
    "layers": [1, 2, 3],
    "bidirectional": [False, True],
    "bias": [True, False],
    "layout": ["steps first", "batch first", "unbatched", *LENGTHS],
    "given": [False, True],
    "dropout": [0.0, 0.4, 1.0],
    "training": [True, False],
    "size": list(SIZES),
    "strided": [False, True],
    "frozen": ["nothing", "input", "first weights", "all weights"],
    "read": ["everything", "output", "states"],
}


def pairwise(options):
    """Cases (dicts) in which every pair of values of two options occurs."""
    names = list(options)
    left = {
        ((a, va), (b, vb))
        for a, b in itertools.combinations(names, 2)
        for va in options[a]
        for vb in options[b]
    }
    cases = []
    while left:
        case = dict(min(left, key=repr))
        for name in sorted(names, key=lambda name: -len(options[name])):
            if name not in case:
                case[name] = max(options[name], key=lambda v: len(covered(case, name, v) & left))
        left -= {pair for name, value in case.items() for pair in covered(case, name, value)}
        cases.append(case)
    return cases


def covered(case, name, value):
    """The pairs that `name` = `value` makes with the rest of a case, names in OPTIONS' order."""
    order = list(OPTIONS)
    return {
        tuple(sorted(((name, value), other), key=lambda pair: order.index(pair[0])))
        for other in case.items()
        if other[0] != name
    }


def tensor(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def spread(t):
    """The same numbers, the last dimension's apart."""
    return t.repeat_interleave(2, dim=-1)[..., ::2]


def build(case):
    """A module of PyTorch's, float64."""
    kind, settings = CELLS[case["cell"]]
    _, _, I, H = SIZES[case["size"]]
    torch.manual_seed(1)
    module = kind(
        I,
        max(2, H) if "proj_size" in settings else H,
        num_layers=case["layers"],
        bidirectional=case["bidirectional"],
        bias=case["bias"],
        batch_first=case["layout"] == "batch first",
        dropout=case["dropout"],
        **settings,
    ).double()
    for name, parameter in module.named_parameters():
        if case["frozen"] == "all weights" or case["frozen"] == "first weights" and "l0" in name:
            parameter.requires_grad_(False)
    return module.train(case["training"])


def arguments(case, module, dtype, device="cpu"):
    """input, hx for a call, and the leaves they are made of."""
    T, B, I, _ = SIZES[case["size"]]
    layout = case["layout"]
    if layout in LENGTHS:
        lengths = LENGTHS[layout](T, B)
        x = tensor(max(lengths), B, I)
    else:
        x = {
            "steps first": tensor(T, B, I),
            "batch first": tensor(B, T, I),
            "unbatched": tensor(T, I),
        }[layout]
    x = x.to(device, dtype)
    x = spread(x) if case["strided"] else x  # `to` keeps dense strides only
    leaves = {"x": x.requires_grad_(case["frozen"] != "input")}
    L = module.num_layers * (1 + module.bidirectional)
    batch = () if layout == "unbatched" else (B,)
    sizes = {"h0": module.proj_size or module.hidden_size, "c0": module.hidden_size}
    for seed, (name, size) in enumerate(sizes.items()):
        if case["given"] and (name == "h0" or isinstance(module, nn.LSTM)):
            state = tensor(L, *batch, size, seed=seed)
            state = state.to(device, dtype)
            leaves[name] = (spread(state) if case["strided"] else state).requires_grad_()
    states = tuple(leaves[name] for name in ("h0", "c0") if name in leaves)
    hx = states if len(states) == 2 else states[0] if states else None
    if layout in LENGTHS:
        x = rnn_utils.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    return x, hx, leaves


def results(module, x, hx, leaves, read="everything"):
    """All that a module returns, and all gradients of random cotangents of what is read.

    Cotangents are the same numbers in any dtype.
    """
    module.zero_grad()
    torch.manual_seed(7)
    output, states = module(x, hx)
    returned = {"output": output.data if isinstance(output, rnn_utils.PackedSequence) else output}
    returned |= dict(zip(("h_n", "c_n"), states if isinstance(states, tuple) else (states,)))
    loss = sum(
        (value * tensor(*value.shape, seed=seed).bfloat16().to(value)).sum()
        for seed, (name, value) in enumerate(returned.items())
        if read == "everything" or (read == "output") == (name == "output")
    )
    if loss.requires_grad:
        loss.backward()
    found = {name: value.detach().clone() for name, value in returned.items()}
    named = itertools.chain(leaves.items(), module.named_parameters())
    return found | {f"grad of {name}": leaf.grad for name, leaf in named}


def outcome(case, module, dtype=torch.float64, device="cpu"):
    module = module.to(device, dtype)
    if case["strided"]:
        for parameter in module.parameters():
            parameter.data = spread(parameter.data)
    return results(module, *arguments(case, module, dtype, device), case["read"])


def assert_close(found, wanted, tolerance=EXACT):
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        have = found[name]
        if want is None or have is None:
            # PyTorch leaves None where nothing flows; zeros say the same.
            assert have is want or not have.any(), f"{name}: found {have}, wanted {want}"
            continue
        assert have.shape == want.shape and have.dtype == want.dtype, name
        error = relative_error(have, want)
        assert error <= tolerance, f"{name}: relative error {error:.2e}"


def scanned(module, algorithm="auto"):
    """A copy of a module, attached."""
    module = copy.deepcopy(module)
    assert bl.attach(module, algorithm)
    return module


def assert_scanned(module, calls=1):
    for chain in attached(module):
        assert (chain.calls, chain.handed_over) == (calls, 0), chain.reason


ids = pytest.mark.parametrize(
    "case", pairwise(OPTIONS), ids=lambda c: "-".join(map(str, c.values()))
)


@ids
@pytest.mark.filterwarnings("ignore:dropout option adds dropout after all but last:UserWarning")
def test_options_meet(case):
    stock = build(case)
    module = scanned(stock)
    assert_close(outcome(case, module), outcome(case, stock))
    assert_scanned(module)


@ids
@pytest.mark.filterwarnings("ignore:dropout option adds dropout after all but last:UserWarning")
def test_float32_is_as_close_to_the_truth_as_pytorch(case):
    stock = build(case)
    truth = outcome(case, copy.deepcopy(stock))
    module = scanned(stock)
    wanted, found = (outcome(case, m, torch.float32) for m in (stock, module))
    assert_scanned(module)
    for name, value in truth.items():
        if value is None or wanted[name] is None:
            continue
        assert found[name].dtype == torch.float32
        allowed = 2 * relative_error(wanted[name], value) + 1e-6
        assert relative_error(found[name], value) <= allowed, name


# --- Packed sequences ------------------------------------------------------------------------


def pair(cell="LSTM", dtype=torch.float64, algorithm="auto", **settings):
    """The same module twice, as PyTorch made it and attached: I = 3, H = 4."""
    kind, own = CELLS[cell]
    torch.manual_seed(1)
    stock = kind(3, 4, **{**own, **settings}).to(dtype)
    return stock, scanned(stock, algorithm)


def pack(x, lengths, **settings):
    return rnn_utils.pack_padded_sequence(x, torch.tensor(lengths), **settings)


def assert_same(stock, module, x, hx=None, tolerance=EXACT, leaves=None):
    """Everything alike, and scanned in one call."""
    wanted, found = (results(m, x, hx, leaves or {}) for m in (stock, module))
    assert_close(found, wanted, tolerance)
    assert_scanned(module)


@pytest.mark.parametrize("algorithm", ["auto", "linear", "chunked", "blelloch"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_every_algorithm_on_sequences_of_any_length(cell, bidirectional, algorithm):
    stock, module = pair(cell, algorithm=algorithm, num_layers=2, bidirectional=bidirectional)
    lengths = [5, 33, 1, 18, 33]
    assert_same(stock, module, pack(tensor(33, 5, 3), lengths, enforce_sorted=False))


@pytest.mark.parametrize("cell", CELLS)
def test_a_packed_sequence_comes_back_as_it_went_in(cell):
    sequences = [tensor(length, 3, seed=length) for length in (4, 7, 1, 7)]
    stock, module = pair(cell, bidirectional=True)
    x = rnn_utils.pack_sequence(sequences, enforce_sorted=False)
    (wanted, _), (found, _) = stock(x), module(x)
    assert type(found) is rnn_utils.PackedSequence
    for field in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        assert torch.equal(getattr(found, field), getattr(wanted, field)), field
    unpacked = [dict(enumerate(rnn_utils.unpack_sequence(o))) for o in (found, wanted)]
    assert_close(*unpacked)


def test_a_packed_sequence_of_the_user_s_own_making():
    stock, module = pair(num_layers=2, bidirectional=True)
    x = rnn_utils.PackedSequence(tensor(6, 3), torch.tensor([3, 2, 1]))
    assert_same(stock, module, x)
    assert module.forward.shape == (3, 3, 4)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_nothing_comes_from_behind_the_end_of_a_sequence(bidirectional, waits, monkeypatch):
    """Behind the short sample's end its relu states would leave float32's range.

    Then its scan is done again; but not where to look would be to wait, as on a GPU.
    """
    monkeypatch.setattr(packed, "_waits_for", lambda device: waits)
    stock, module = pair("RNN-relu", torch.float32, bias=False, bidirectional=bidirectional)
    for rnn in (stock, module):
        for name, parameter in rnn.named_parameters():
            if "weight_hh" in name:
                parameter.data.copy_(4 * torch.ones(4, 4))
    x = tensor(300, 3, 3).float()
    x[:, 0] = 0  # the long sample rests
    x = pack(x, [300, 3, 2])
    assert all(v.isfinite().all() for v in results(stock, x, None, {}).values())
    stock.zero_grad()
    assert_same(stock, module, x, tolerance=1e-5)


def test_a_held_cell_is_exact_however_long():
    """c_n of a short sample crosses the padding of a long one, and so does its gradient."""
    stock, module = pair(bidirectional=True, bias=False)
    assert_same(stock, module, pack(tensor(500, 3, 3), [500, 499, 1]))
    stock, module = pair(dtype=torch.float32)
    x = pack(tensor(500, 2, 3).float(), [500, 1])
    wanted, found = stock(x)[1][1], module(x)[1][1]
    assert relative_error(found[0, 1], wanted[0, 1]) < 1e-6


@pytest.mark.parametrize("given", [False, True])
def test_few_long_sequences_among_many_short_ones(given):
    """More than padding is worth: samples are scanned in groups."""
    stock, module = pair(num_layers=2, bidirectional=True)
    lengths = [1] * 20 + [200] + [40, 41] + [2] * 20
    hx = (tensor(4, 43, 4), tensor(4, 43, 4, seed=2)) if given else None
    leaves = {str(i): s.requires_grad_() for i, s in enumerate(hx or ())}
    wanted = results(stock, pack(tensor(200, 43, 3), lengths, enforce_sorted=False), hx, leaves)
    wanted = {k: v.clone() for k, v in wanted.items()}
    for state in leaves.values():
        state.grad = None
    x = pack(tensor(200, 43, 3), lengths, enforce_sorted=False)
    with bl.ops.scan_log() as log:
        assert_close(results(module, x, hx, leaves), wanted)
    assert_scanned(module)
    steps = [(T, B) for _, (T, B, _), _ in log.scans]
    assert sorted(set(steps)) == [(2, 40), (41, 2), (200, 1)] and len(steps) == 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_an_empty_batch(cell, dtype):
    """Its incoming gradient is an expanded number, which calls itself contiguous."""
    _, module = pair(cell, dtype, num_layers=2)
    x = torch.empty(5, 0, 3, dtype=dtype, requires_grad=True)
    output, _ = module(x)
    output.sum().backward()
    assert x.grad.shape == (5, 0, 3)
    assert all(p.grad is not None and not p.grad.any() for p in module.parameters())
    assert_scanned(module)


# --- Precision -------------------------------------------------------------------------------

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def run_or_error(module, x, hx, autocast):
    """Output and states, or the type of the error."""
    try:
        with torch.autocast("cpu", autocast or BF16, enabled=autocast is not None):
            output, states = module(x, hx)
    except Exception as error:
        return type(error)
    output = output.data if isinstance(output, rnn_utils.PackedSequence) else output
    return [output, *(states if isinstance(states, tuple) else (states,))]


@pytest.mark.parametrize("autocast", [None, BF16, F16], ids=str)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cell", ["RNN-tanh", "GRU", "LSTM", "LSTM projected"])
def test_every_mixture_of_dtypes(cell, packed, autocast):
    """To PyTorch's dtypes wherever it works; without autocast, refused where it refuses."""
    for weight in (F32, BF16, F64):
        for input, given in itertools.product((F32, BF16, F16, F64), (None, F32, BF16)):
            stock, module = pair(cell, weight)
            x = tensor(5, 2, 3).to(input)
            x = pack(x, [5, 3]) if packed else x
            hx = None
            if given:
                hx = (tensor(1, 2, stock.proj_size or 4).to(given), tensor(1, 2, 4).to(given))
                hx = hx if isinstance(stock, nn.LSTM) else hx[0]
            wanted, found = (run_or_error(m, x, hx, autocast) for m in (stock, module))
            if isinstance(wanted, type):
                # oneDNN has no float16 LSTM on some machines; a scan has.
                assert found is wanted or autocast and not isinstance(found, type)
                continue
            assert not isinstance(found, type), (weight, input, given, found)
            dtypes = [[t.dtype for t in tensors] for tensors in (found, wanted)]
            assert dtypes[0] == dtypes[1], (weight, input, given)
            assert all(relative_error(f, w) < 0.05 for f, w in zip(found, wanted))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_bfloat16_is_as_close_to_the_truth_as_pytorch(cell, packed, autocast):
    """Two layers with dropout between them: the same noise, and no rounding before the end."""
    settings = {"num_layers": 2, "bidirectional": True, "dropout": 0.4}
    stock, module = pair(cell, F32 if autocast else BF16, **settings)
    x = tensor(30, 5, 3).to(F32 if autocast else BF16)
    lengths = [30, 21, 20, 9, 3]

    def run(module, x):
        return results(module, pack(x, lengths) if packed else x, None, {})

    truth = run(copy.deepcopy(stock).double(), x.double())
    with torch.autocast("cpu", BF16, enabled=autocast):
        wanted, found = (run(m, x) for m in (stock, module))
    assert_scanned(module)
    for name, value in truth.items():
        allowed = 1.1 * float((wanted[name].double() - value).norm()) + 1e-6
        assert float((found[name].double() - value).norm()) <= allowed, name


@pytest.mark.parametrize("convert", ["double", "half", "bfloat16"])
@pytest.mark.parametrize("cell", CELLS)
def test_converted_after_attach(cell, convert):
    stock, module = (getattr(m, convert)() for m in pair(cell, F32, num_layers=2))
    dtype = stock.weight_ih_l0.dtype
    assert_same(stock, module, tensor(6, 2, 3).to(dtype), tolerance=EXACT if dtype == F64 else 0.05)


# --- Long, repeated, copied, compiled -------------------------------------------------------


@pytest.mark.parametrize("cell", ["RNN-tanh", "GRU", "LSTM"])
def test_more_steps_than_a_grid_has_blocks(cell):
    """PyTorch's own backward takes minutes there: the judge of gradients is the chain in parts."""
    stock, module = pair(cell, F32)
    x = tensor(65_537, 1, 3).float()
    output, states = module(x)
    with torch.no_grad():
        assert relative_error(output, stock(x)[0]) < 1e-4
    (output.mean() + output[-1].sum()).backward()
    whole = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    outputs, states = [], None
    for part in x.split(30_000):
        output, states = module(part, states)
        outputs.append(output)
    (torch.cat(outputs).mean() + output[-1].sum()).backward()
    assert_close(whole, {name: p.grad for name, p in module.named_parameters()}, 1e-3)
    assert_scanned(module, calls=4)


@pytest.mark.parametrize("cell", CELLS)
def test_called_several_times_in_one_step(cell):
    stock, module = pair(cell, bidirectional=True, num_layers=2)

    def run(m):
        first, states = m(tensor(6, 2, 3))
        second, _ = m(tensor(4, 2, 3), states)
        third, _ = m(pack(tensor(4, 2, 3), [4, 2]))
        (first.sum() + second.square().sum() + third.data.sin().sum()).backward()
        return {name: p.grad for name, p in m.named_parameters()}

    assert_close(run(module), run(stock))
    assert_scanned(module, calls=3)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_derivatives_of_derivatives(cell, packed):
    def run(m):
        x = tensor(5, 3, 3).requires_grad_()
        output, states = m(pack(x, [5, 2, 1]) if packed else x)
        output = output.data if packed else output
        states = states if isinstance(states, tuple) else (states,)
        loss = output.square().sum() + sum(s.sin().sum() for s in states)
        inner = [x, m.weight_hh_l0]
        penalty = sum(g.square().sum() for g in torch.autograd.grad(loss, inner, create_graph=True))
        (loss + penalty).backward()
        return {"x": x.grad} | {name: p.grad for name, p in m.named_parameters()}

    stock, module = pair(cell, bidirectional=True)
    assert_close(run(module), run(stock))
    assert_scanned(module)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_without_gradients(cell, packed, mode):
    stock, module = pair(cell, bidirectional=True, num_layers=2)
    x = pack(tensor(6, 3, 3), [6, 6, 2]) if packed else tensor(6, 3, 3)
    with mode():
        assert_close(results(module, x, None, {}), results(stock, x, None, {}))
    assert_scanned(module)


CHANGES = {
    "pruned": lambda m: prune.l1_unstructured(m, "weight_hh_l1_reverse", 0.5),
    "weight norm": lambda m: parametrizations.weight_norm(m, "weight_ih_l1"),
    "orthogonal": lambda m: parametrizations.orthogonal(m, "weight_hh_l0_reverse"),
    "replaced": lambda m: setattr(m, "bias_hh_l0", nn.Parameter(2 * m.bias_hh_l0.detach())),
    "assigned": lambda m: m.load_state_dict(
        {name: 2 * value for name, value in m.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("cell", CELLS)
def test_weights_that_change_after_attach(cell, change):
    stock, module = pair(cell, bidirectional=True, num_layers=2)
    for m in (stock, module):
        torch.manual_seed(3)
        CHANGES[change](m)
    assert_same(stock, module, tensor(6, 3, 3))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("cell", CELLS)
def test_copies_are_attached_on_their_own(cell, how):
    stock, module = pair(cell, num_layers=2, algorithm="chunked")
    other = how(module)
    assert other.forward is not module.forward and other.forward.module is other
    assert other.forward.algorithm == "chunked"
    assert_same(stock, other, tensor(6, 3, 3))
    assert module.forward.calls == 0 and module.weight_hh_l0.grad is None


class Summed(nn.Module):
    """A model around a recurrent layer, as torch.compile likes it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, hx=None):
        output, states = self.layer(x * 2, hx)
        return output.square().sum() + (states[0] if isinstance(states, tuple) else states).sum()


@pytest.mark.parametrize("cell", CELLS)
def test_compiled_without_a_break(cell):
    """Given leave to see recurrent layers, torch.compile makes one graph of a model."""
    stock, module = (Summed(m) for m in pair(cell, num_layers=2, bidirectional=True))
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        compiled(tensor(6, 3, 3)).backward()
    stock(tensor(6, 3, 3)).backward()
    found, wanted = ({n: p.grad for n, p in m.named_parameters()} for m in (module, stock))
    assert_close(found, wanted)
    assert module.layer.forward.shape == (6, 3, 4)


# --- What PyTorch refuses, and what is left to it -------------------------------------------


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
    assert module.forward.handed_over == 1 and module.forward.reason


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

    def hand_over(*size, spread):
        asked.append((*size, spread))
        return "PyTorch's kernel is faster for 5 steps" if size[1] == 5 else None

    monkeypatch.setattr(planner, "hand_over", hand_over)
    stock, module = pair("GRU", num_layers=2, bidirectional=True)
    x = tensor(5, 2, 3)
    assert torch.equal(module(x)[0], stock(x)[0])
    chain = module.forward
    assert (chain.calls, chain.handed_over, chain.shape) == (0, 1, None)
    assert "1 of 1 calls left to PyTorch; last: PyTorch's kernel is faster" in bl.explain(module)
    with torch.no_grad():
        module(pack(tensor(7, 2, 3), [7, 3]))
    assert (chain.calls, chain.handed_over, chain.reason) == (1, 1, None)
    cpu = torch.device("cpu")
    assert asked == [("gru", 5, 2, 4, cpu, None), ("gru", 7, 2, 4, cpu, (10, 7))]
    # The same size again: not asked again.
    assert torch.equal(module(x)[0], stock(x)[0])
    assert (chain.calls, chain.handed_over, len(asked)) == (1, 2, 2)
    assert chain.reason == "PyTorch's kernel is faster for 5 steps"


def test_a_device_without_kernels_is_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(ops, "recurrent_kernels_missing", lambda device: f"none on {device}")
    stock, module = pair("LSTM")
    assert torch.equal(module(tensor(5, 2, 3))[0], stock(tensor(5, 2, 3))[0])
    assert "1 of 1 calls left to PyTorch; last: none on cpu" in bl.explain(module)


# --- An algorithm for each chain, and what explain says --------------------------------------


def model():
    return nn.ModuleDict(
        {
            "encoder": nn.ModuleDict({"low": nn.GRU(3, 4), "high": nn.GRU(4, 4)}),
            "encoder2": nn.LSTM(3, 4, 2, bidirectional=True),
            "head": nn.Linear(4, 4),
        }
    )


@pytest.mark.parametrize(
    ("algorithm", "wanted"),
    [
        ({}, ["auto", "auto", "auto"]),
        ({"": "linear"}, ["linear", "linear", "linear"]),
        ({"encoder": "linear"}, ["linear", "linear", "auto"]),
        ({"encoder.high": "chunked", "": "linear"}, ["linear", "chunked", "linear"]),
        ({"encoder.low": "chunked", "encoder": "linear"}, ["chunked", "linear", "auto"]),
        ({"encoder2": "blelloch"}, ["auto", "auto", "blelloch"]),
    ],
)
def test_an_algorithm_for_each_chain(algorithm, wanted):
    module = model()
    bl.attach(module, "chunked")
    chains = bl.attach(module, algorithm)
    assert [chain.name for chain in chains] == ["encoder.low", "encoder.high", "encoder2"]
    assert [chain.algorithm for chain in chains] == wanted


def test_a_chain_under_either_of_its_names():
    layer = nn.GRU(3, 4)
    [chain] = bl.attach(nn.ModuleDict({"a": layer, "b": layer}), {"b": "linear"})
    assert chain.algorithm == "linear"


@pytest.mark.parametrize(
    ("algorithm", "error", "message"),
    [
        ({"decoder": "linear"}, ValueError, "found the name 'decoder', .* 'encoder.low', 'enc"),
        ({"head": "linear"}, ValueError, "found the name 'head', wanted '' or the name of a"),
        ({"encoder": "fast"}, ValueError, "algorithm: found 'fast', wanted one of auto"),
        ({"encoder": None}, TypeError, "algorithm: found NoneType, wanted str"),
        ({1: "linear"}, TypeError, "algorithm: found the key 1, wanted the dotted name"),
        (["linear"], TypeError, "algorithm: found list, wanted str"),
    ],
)
def test_an_unknown_name_or_algorithm_attaches_nothing(algorithm, error, message):
    module = model()
    with pytest.raises(error, match=message):
        bl.attach(module, algorithm)
    assert not attached(module)


def test_the_algorithm_of_a_chain_may_be_set():
    _, module = pair("LSTM", num_layers=2)
    module.forward.algorithm = "chunked"
    with bl.ops.scan_log() as log:
        results(module, tensor(50, 2, 3), None, {})
    assert [(cell, plan.algorithm) for cell, _, plan in log.scans] == [("LSTM", "chunked")] * 2
    with pytest.raises(ValueError, match="algorithm: found 'fast', wanted one of"):
        module.forward.algorithm = "fast"
    assert module.forward.algorithm == "chunked"


@pytest.mark.parametrize(
    ("cell", "settings", "said"),
    [
        ("RNN-relu", {}, "RNN-relu  1  "),
        ("GRU", {"num_layers": 3}, "GRU   3 "),
        ("LSTM", {"num_layers": 2, "bidirectional": True}, "LSTM  2 both ways  "),
    ],
)
def test_explain_tells_cell_and_layers(cell, settings, said):
    _, module = pair(cell, **settings)
    assert said in bl.explain(module) and "planned at the first call" in bl.explain(module)
    module(tensor(9, 2, 3))
    line = bl.explain(module).splitlines()[2]
    assert said in line and "  9  2  4  " in line
