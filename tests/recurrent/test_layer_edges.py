"""Where PyTorch gives no gradient, which changes in place it allows, and which weights it uses.

T steps, B batch, I input, H hidden.
"""

import copy
import itertools

import pytest
import torch
from support.changed import SAYS
from support.recurrent_modules import CELLS, assert_close, pack, scanned, tensor
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.chain import named_chains

pytestmark = pytest.mark.usefixtures("accelerate_everything")
T, B, I, H = 5, 2, 3, 4


def twins(cell, **settings):
    kind, own = CELLS[cell]
    torch.manual_seed(0)
    stock = kind(I, H, **own, **settings).double()
    return stock, scanned(stock)


def states_of(module, *batch):
    """h0, or h0 and c0."""
    D = module.num_layers * (1 + module.bidirectional)
    sizes = [module.proj_size or H] + [H] * isinstance(module, nn.LSTM)
    states = [tensor(D, *batch, size, seed=seed) for seed, size in enumerate(sizes)]
    return tuple(states) if len(states) == 2 else states[0]


def flat(states):
    return states if isinstance(states, tuple) else (states,)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"num_layers": 2}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_none_where_pytorch_gives_none(cell, settings, steps):
    """Whatever subset of the results a loss reads; tests elsewhere take zeros for None."""
    stock, module = twins(cell, **settings)

    def gradients(layer, used):
        layer.zero_grad()
        x, hx = tensor(steps, B, I).requires_grad_(), states_of(layer, B)
        first = [state.requires_grad_() for state in flat(hx)]
        output, last = layer(x, hx)
        sum(
            value.sin().sum() for i, value in enumerate([output, *flat(last)]) if i in used
        ).backward()
        leaves = {"x": x, **dict(enumerate(first)), **dict(layer.named_parameters())}
        return {name: leaf.grad for name, leaf in leaves.items()}

    results = range(2 + isinstance(stock, nn.LSTM))
    for used in itertools.chain.from_iterable(
        itertools.combinations(results, n) for n in (1, 2, 3)
    ):
        wanted, found = (gradients(layer, used) for layer in (stock, module))
        assert {n for n in found if found[n] is None} == {n for n in wanted if wanted[n] is None}
        assert_close(found, wanted)


def changed_in_place(layer, layout, frozen, what):
    """The gradients after a change in place between forward and backward, or the error's type."""
    layer.zero_grad()
    layer.requires_grad_(not frozen)
    batch = () if layout == "unbatched" else (B,)
    shape = {"unbatched": (T, I), "batch first": (B, T, I)}.get(layout, (T, B, I))
    leaf, hx = tensor(*shape).requires_grad_(), states_of(layer, *batch)
    x = leaf * 1
    x = pack(x, [T, T - 2]) if layout == "packed" else x
    output, last = layer(x, hx)
    output = output if isinstance(output, torch.Tensor) else output.data
    loss = output.sin().sum() + sum(state.sin().sum() for state in flat(last))
    changed = {"x": x if isinstance(x, torch.Tensor) else x.data, "h0": flat(hx)[0]}
    changed |= {"c0": flat(hx)[-1], "h_n": flat(last)[0]} | dict(layer.named_parameters())
    changed["a view of output"] = output.detach()[..., 1:]
    try:
        with torch.no_grad():
            changed[what].mul_(1.5)
        loss.backward()
    except RuntimeError as error:
        assert "inplace" in str(error)
        return RuntimeError
    return {"x": leaf.grad} | {name: p.grad for name, p in layer.named_parameters()}


IN_PLACE = [
    (cell, what)
    for cell in CELLS
    for what in ("x", "h0", "c0", "h_n", "a view of output", "weight_ih_l0", "bias_ih_l0")
    if what != "c0" or cell.startswith("LSTM")
    if what != "a view of output" or SAYS
]


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
@pytest.mark.parametrize("layout", ["steps first", "batch first", "packed", "unbatched"])
@pytest.mark.parametrize(("cell", "what"), IN_PLACE)
def test_changes_in_place_that_pytorch_allows(cell, what, layout, frozen):
    stock, module = twins(cell, batch_first=layout == "batch first")
    wanted, found = (changed_in_place(layer, layout, frozen, what) for layer in (stock, module))
    if (cell, what) == ("GRU", "h0"):  # its backward reads each state, of which PyTorch keeps h - n
        assert found is RuntimeError
    elif wanted is not RuntimeError:
        assert found is not RuntimeError
        assert_close(found, wanted)


def test_a_residual_added_in_place():
    """x += rnn(x), batch first."""
    found = []
    for layer in twins("GRU", batch_first=True):
        leaf = tensor(B, T, I).requires_grad_()
        x = nn.functional.linear(leaf, torch.eye(I, dtype=leaf.dtype))
        output, _ = layer(x)
        x += output[..., :I]
        x.square().sum().backward()
        found.append({"x": leaf.grad} | {name: p.grad for name, p in layer.named_parameters()})
    assert_close(found[1], found[0])


class WeightDropout(nn.Module):
    """As in AWD-LSTM: the layer's weight is a function of a parameter elsewhere."""

    def __init__(self, layer, replaces):
        super().__init__()
        self.layer, self.replaces = layer, replaces
        weight = layer.weight_hh_l0
        self.raw = nn.Parameter(weight.detach().clone())
        if replaces != "_flat_weights":
            del layer._parameters["weight_hh_l0"]
            layer.weight_hh_l0 = weight.detach().clone()

    def forward(self, x):
        torch.manual_seed(3)
        dropped = nn.functional.dropout(self.raw, 0.5)
        if self.replaces == "_flat_weights":
            weights = list(self.layer._flat_weights)
            weights[1] = dropped
            self.layer._flat_weights = weights
        else:
            self.layer.weight_hh_l0 = dropped
        return self.layer(x)


@pytest.mark.parametrize("replaces", ["_flat_weights", "the attribute"])
@pytest.mark.parametrize("cell", CELLS)
def test_weight_dropout(cell, replaces):
    found = []
    for layer in twins(cell):
        model = WeightDropout(layer, replaces)
        for _ in range(2):
            model.zero_grad()
            output, _ = model(tensor(T, B, I))
            output.square().sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        assert gradients["raw"].any()
        found.append({"output": output.detach()} | gradients)
    assert_close(found[1], found[0])
    [chain] = named_chains(layer).values()
    assert (chain.calls, chain.fallback_calls) == (2, 0)


def test_flat_weights_of_another_kind_are_pytorchs_to_refuse():
    for change in (lambda weights: weights[:2], lambda weights: [None, *weights[1:]]):
        errors = []
        for layer in twins("LSTM"):
            layer._flat_weights = change(layer._flat_weights)
            with pytest.raises((RuntimeError, AttributeError, TypeError)) as error:
                layer(tensor(T, B, I))
            errors.append(error.type)
        assert errors[0] is errors[1]


def test_flat_weights_after_functional_call_are_the_modules_own():
    for layer in twins("LSTM"):
        wanted = layer(tensor(T, B, I))[0]
        doubled = {name: 2 * p for name, p in layer.named_parameters()}
        other = torch.func.functional_call(layer, doubled, (tensor(T, B, I),))[0]
        assert not torch.equal(other, wanted)
        assert torch.equal(layer(tensor(T, B, I))[0], wanted)


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(layer.hidden_size, 2).double()

    def forward(self, x):
        output, _ = self.layer(x)
        return self.head(output)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace. is:DeprecationWarning")
@pytest.mark.parametrize("cell", ["RNN-tanh", "RNN-relu", "GRU", "LSTM"])
def test_traced(cell):
    """A trace holds PyTorch's operators alone, and takes other sizes as PyTorch's would."""
    _, layer = twins(cell)
    model = Model(layer)
    wanted = {n: model(tensor(n, B, I)) for n in (T, 2 * T)}
    with torch.no_grad():
        traced = torch.jit.trace(model, (tensor(T, B, I),))
    assert "bppsa" not in str(traced.inlined_graph)
    [chain] = named_chains(model).values()
    assert "torch.jit.trace" in chain.last_fallback and "torch.jit.trace" in bl.explain(model)
    for steps, output in wanted.items():
        assert_close({"output": traced(tensor(steps, B, I))}, {"output": output})
    model(tensor(T, B, I))
    assert chain.reason is None and copy.deepcopy(model).layer is not layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("algorithm", ["auto", "linear", "chunked", "blelloch"])
@pytest.mark.parametrize("where", ["input", "gradient"])
@pytest.mark.parametrize("cell", CELLS)
def test_an_infinite_number_leaves_the_same_results_finite(cell, where, algorithm, dtype):
    """Which of the others are infinite, and which NaN, may differ: docs/numerics.md."""
    kind, settings = CELLS[cell]
    for seed in range(5):
        torch.manual_seed(seed)
        stock = kind(I, H, **settings).to(dtype)
        module, finite = scanned(stock, algorithm), []
        for layer in (stock, module):
            x = tensor(9, B, I, seed=seed).to(dtype)
            if where == "input":
                x[seed, 0, 1] = torch.inf
            first = [state.to(dtype) for state in flat(states_of(layer, B))]
            output, _ = layer(x.requires_grad_(), first[0] if len(first) == 1 else tuple(first))
            grad = tensor(*output.shape, seed=seed).to(dtype)
            if where == "gradient":
                grad[seed + 1, 0, 0] = -torch.inf
            output.backward(grad)
            results = {
                "output": output,
                "x": x.grad,
                **{n: p.grad for n, p in layer.named_parameters()},
            }
            finite.append({name: value.isfinite() for name, value in results.items()})
        for name, wanted in finite[0].items():
            assert torch.equal(finite[1][name], wanted), f"{name}, seed {seed}"


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_states_may_be_detached_in_place(kind, batch_first):
    """As those that truncated back-propagation hands on; PyTorch's are no views either."""
    layer = kind(I, H, batch_first=batch_first)
    bl.attach(layer)
    output, last = layer(torch.randn(T, B, I))
    for state in last if kind is nn.LSTM else (last,):
        assert state.detach_() is state and not state.requires_grad
    output.sum().backward()
    assert layer.weight_hh_l0.grad is not None
