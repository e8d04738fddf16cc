"""Every option of nn.RNN, nn.GRU and nn.LSTM, attached, against PyTorch's own.

Options meet in pairs: each value of each option with each value of every other, in as few cases
as a greedy choice finds. T steps, B batch, I input, H hidden, P state that is shown.
"""

import copy
import itertools

import pytest
import torch
from cases import relative_error
from torch import nn
from torch.nn.utils import rnn as rnn_utils

import bppsa_lightning as bl
from bppsa_lightning.attach import attached

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
        if case["strided"]:
            parameter.data = spread(parameter.data)
        if case["frozen"] == "all weights" or case["frozen"] == "first weights" and "l0" in name:
            parameter.requires_grad_(False)
    return module.train(case["training"])


def arguments(case, module, dtype):
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
    x = (spread(x) if case["strided"] else x).to(dtype)
    leaves = {"x": x.requires_grad_(case["frozen"] != "input")}
    L = module.num_layers * (1 + module.bidirectional)
    batch = () if layout == "unbatched" else (B,)
    sizes = {"h0": module.proj_size or module.hidden_size, "c0": module.hidden_size}
    for seed, (name, size) in enumerate(sizes.items()):
        if case["given"] and (name == "h0" or isinstance(module, nn.LSTM)):
            state = tensor(L, *batch, size, seed=seed)
            state = (spread(state) if case["strided"] else state).to(dtype)
            leaves[name] = state.requires_grad_()
    states = tuple(leaves[name] for name in ("h0", "c0") if name in leaves)
    hx = states if len(states) == 2 else states[0] if states else None
    if layout in LENGTHS:
        x = rnn_utils.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    return x, hx, leaves


def results(module, x, hx, leaves, read="everything"):
    """All that a module returns, and all gradients of random cotangents of what is read."""
    module.zero_grad()
    torch.manual_seed(7)
    output, states = module(x, hx)
    returned = {"output": output.data if isinstance(output, rnn_utils.PackedSequence) else output}
    returned |= dict(zip(("h_n", "c_n"), states if isinstance(states, tuple) else (states,)))
    loss = sum(
        (value * tensor(*value.shape, seed=seed).to(value.dtype)).sum()
        for seed, (name, value) in enumerate(returned.items())
        if read == "everything" or (read == "output") == (name == "output")
    )
    if loss.requires_grad:
        loss.backward()
    found = {name: value.detach().clone() for name, value in returned.items()}
    named = itertools.chain(leaves.items(), module.named_parameters())
    return found | {f"grad of {name}": leaf.grad for name, leaf in named}


def outcome(case, module, dtype=torch.float64):
    module = module.to(dtype)
    return results(module, *arguments(case, module, dtype), case["read"])


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
