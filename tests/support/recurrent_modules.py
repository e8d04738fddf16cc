"""The same nn.RNN, nn.GRU or nn.LSTM as PyTorch made it and attached, in any of its options.

T steps, B batch, I input, H hidden, P state that is shown.
"""

import copy
import itertools

import torch
from torch import nn
from torch.nn.utils import rnn as rnn_utils

import bppsa_lightning as bl
from bppsa_lightning.chain import named_chains
from support.cases import relative_error

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


def lstm_has_bfloat16():
    """Whether PyTorch's LSTM works in bfloat16: on a processor without AVX-512 it raises."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


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
    assert named_chains(module)
    for chain in named_chains(module).values():
        assert (chain.calls, chain.fallback_calls) == (calls, 0), chain.reason


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


class Summed(nn.Module):
    """A model around a recurrent layer, as torch.compile likes it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, hx=None):
        output, states = self.layer(x * 2, hx)
        return output.square().sum() + (states[0] if isinstance(states, tuple) else states).sum()
