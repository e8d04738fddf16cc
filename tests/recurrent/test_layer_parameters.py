"""The parameters of an attached nn.RNN: loaded, converted, copied, pruned, shared, replaced.

T steps, B batch, H state, I input.
"""

import copy
import io
import itertools
import pickle

import pytest
import torch
from support.helpers import B, H, I, T, assert_close, assert_identical, is_attached, weights
from support.rnn_twins import (
    EXACT,
    assert_same_as_stock,
    assert_same_outcome,
    assert_scanned,
    model_twins,
    outcome,
    results,
    state,
    step,
    tensor,
    twins,
)
from torch import nn
from torch.nn.utils import parametrizations, prune

import bppsa_lightning as bl

pytestmark = pytest.mark.usefixtures("accelerate_everything")

# By attach: what runs, and what torch.jit.script asks for.
ADDED = {"forward", "__prepare_scriptable__"}


def test_nothing_of_a_model_changes_but_the_instance_forward():
    stock, scanned = model_twins()
    assert list(scanned.state_dict()) == list(stock.state_dict())
    assert_identical(weights(scanned), weights(stock))
    assert [n for n, _ in scanned.named_parameters()] == [n for n, _ in stock.named_parameters()]
    assert [n for n, _ in scanned.named_modules()] == [n for n, _ in stock.named_modules()]
    assert repr(scanned) == repr(stock)
    assert type(scanned.rnn) is nn.RNN
    assert scanned.rnn.__dict__.keys() - stock.rnn.__dict__.keys() == ADDED


def test_state_dicts_load_in_both_directions():
    stock, scanned = model_twins()
    other_stock, other_scanned = model_twins()
    with torch.no_grad():
        for parameter in itertools.chain(stock.parameters(), scanned.parameters()):
            parameter.mul_(1.5)
    wanted = step(stock)
    other_scanned.load_state_dict(stock.state_dict(), strict=True)
    other_stock.load_state_dict(scanned.state_dict(), strict=True)
    assert_close(step(other_scanned), wanted, EXACT)
    assert_close(step(other_stock), wanted, EXACT)
    assert_scanned(other_scanned)


def test_load_state_dict_by_assignment():
    stock, scanned = model_twins()
    doubled = {name: 2 * value for name, value in weights(stock).items()}
    for model in (stock, scanned):
        model.load_state_dict(doubled, assign=True)
    assert_close(step(scanned), step(stock), EXACT)


@pytest.mark.parametrize(
    ("first", "convert", "then"),
    [
        (torch.float32, lambda m: m.double(), torch.float64),
        (torch.float32, lambda m: m.to(torch.float64), torch.float64),
        (torch.float64, lambda m: m.float(), torch.float32),
        (torch.float32, lambda m: m.bfloat16(), torch.bfloat16),
        (torch.float32, lambda m: m.half(), torch.float16),
    ],
)
def test_conversion_after_attach(first, convert, then):
    stock, scanned = (convert(rnn) for rnn in twins(dtype=first))
    tolerance = {torch.float64: EXACT, torch.float32: 2e-5}.get(then, 0.05)
    assert_same_as_stock(stock, scanned, tensor(T, B, I, dtype=then), tolerance=tolerance)


def errors(pair, context, x):
    """Of stock and scanned: the results' dtypes, and each value's distance from the truth."""

    def run(rnn, x, mode):
        rnn.zero_grad()
        with mode():
            output, hn = rnn(x)
        direct = tensor(*output.shape, seed=7).to(output.dtype)
        torch.autograd.backward([output, hn], [direct, direct[-1:]])
        found = {"output": output.detach(), "h_n": hn.detach()}
        return found | {name: p.grad for name, p in rnn.named_parameters()}

    truth = run(copy.deepcopy(pair[0]).double(), x.double(), torch.enable_grad)
    for rnn in pair:
        found = run(rnn, x, context)
        yield (
            {name: value.dtype for name, value in found.items()},
            {name: float((v.double() - truth[name]).norm()) for name, v in found.items()},
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("module", ["converted", "autocast"])
def test_half_precision_is_as_close_to_the_truth_as_pytorch(module, dtype):
    pair = twins(dtype=dtype if module == "converted" else torch.float32)

    def context():
        return torch.autocast("cpu", dtype, enabled=module == "autocast")

    x = tensor(T, B, I, dtype=dtype if module == "converted" else torch.float32)
    (wanted, allowed), (found, error) = errors(pair, context, x)
    assert found == wanted and found["output"] == dtype
    assert all(error[name] <= 1.05 * allowed[name] for name in error), (error, allowed)
    assert_scanned(pair[1])


@pytest.mark.parametrize("given", [None, torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("input", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_mixed_dtypes(autocast, weight, input, given):
    """Every mixture works where PyTorch's does, to the same dtype, and fails where it fails."""
    stock, scanned = twins(dtype=weight)
    x, h0 = tensor(T, B, I, dtype=input), None if given is None else state(dtype=given)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        wanted, found = (outcome(lambda rnn=rnn: rnn(x, h0)) for rnn in (stock, scanned))
    assert_same_outcome(found, wanted, tolerance=0.03)


def test_double_precision_ignores_autocast():
    pair = twins()
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_as_stock(*pair, tensor(T, B, I))


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": lambda model: torch.load(saved(model), weights_only=False),
}


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_trains_on_its_own(how):
    stock, scanned = model_twins()
    before = weights(scanned)
    other = COPIES[how](scanned)
    assert is_attached(other.rnn)
    assert other.rnn.forward is not scanned.rnn.forward
    assert other.rnn.forward.module is other.rnn
    with torch.no_grad():
        for model in (stock, other):
            for parameter in model.parameters():
                parameter.mul_(1.5)
    assert_close(step(other), step(stock), EXACT)
    assert_scanned(other)
    assert_identical(weights(scanned), before)
    assert scanned.rnn.forward.calls == 0 and scanned.rnn.weight_hh_l0.grad is None
    bl.detach(other)
    assert is_attached(scanned.rnn) and not is_attached(other.rnn)


def test_a_checkpoint_of_weights_needs_nothing_of_this_package():
    _, scanned = model_twins()
    assert_identical(torch.load(saved(scanned.state_dict()), weights_only=True), weights(scanned))


def changed(change, when):
    """(False, a changed layer), then (True, the same, attached before or after the change)."""
    for attach in (False, True):
        torch.manual_seed(0)
        rnn = nn.RNN(I, H).double()
        if attach and when == "before":
            bl.attach(rnn)
        change(rnn)
        if attach and when == "after":
            bl.attach(rnn)
        yield attach, rnn


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["weight_hh_l0", "weight_ih_l0"])
def test_pruned_weights(name, when):
    found = []
    for attach, rnn in changed(lambda rnn: prune.l1_unstructured(rnn, name, 0.5), when):
        pruned = results(rnn, tensor(T, B, I), state())
        assert (
            pruned[f"{name}_orig"].count_nonzero() <= rnn.get_parameter(f"{name}_orig").numel() / 2
        )
        if attach:
            assert_scanned(rnn)
        prune.remove(rnn, name)
        permanent = results(rnn, tensor(T, B, I), state())
        found.append(pruned | {f"permanent {key}": value for key, value in permanent.items()})
    assert_close(found[1], found[0], EXACT)


PARAMETRIZATIONS = {
    "old weight_norm": nn.utils.weight_norm,
    "weight_norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "spectral_norm": lambda rnn, name: parametrizations.spectral_norm(rnn, name).eval(),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", PARAMETRIZATIONS)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_parametrized_weights(how, when):
    found = []
    for _, rnn in changed(lambda rnn: PARAMETRIZATIONS[how](rnn, "weight_hh_l0"), when):
        found.append(results(rnn, tensor(T, B, I), state()))
    assert all(value is not None for value in found[0].values())
    assert_close(found[1], found[0], EXACT)
    assert_scanned(rnn)


def test_a_weight_shared_by_two_modules():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.RNN(I, H), nn.RNN(H, H, nonlinearity="relu")
            self.second.weight_hh_l0 = self.first.weight_hh_l0

        def forward(self, x):
            output, hn = self.first(x)
            return self.second(output, hn)[0]

    torch.manual_seed(0)
    stock = Shared().double()
    scanned = copy.deepcopy(stock)
    assert [chain.name for chain in bl.attach(scanned)] == ["first", "second"]
    assert scanned.second.weight_hh_l0 is scanned.first.weight_hh_l0
    assert_close(step(scanned), step(stock), EXACT)
    assert_scanned(scanned)


def test_a_replaced_parameter_is_used():
    pair = twins()
    for rnn in pair:
        rnn.weight_hh_l0 = nn.Parameter(tensor(H, H).t())
        rnn.weight_ih_l0.data = tensor(I, H).t()
    assert_same_as_stock(*pair, tensor(T, B, I))


def test_weights_of_unusual_shapes_are_left_to_pytorch():
    """PyTorch broadcasts a bias."""
    pair = twins()
    for rnn in pair:
        rnn.bias_hh_l0 = nn.Parameter(tensor(1))
    assert_identical(*(results(rnn, tensor(T, B, I)) for rnn in pair))
    assert "weights of unusual shapes" in bl.explain(pair[1])


@pytest.mark.parametrize("name", ["weight_hh_l0", "bias_hh_l0"])
def test_a_weight_changed_between_forward_and_backward(name):
    def run(rnn):
        output, hn = rnn(tensor(T, B, I))
        with torch.no_grad():
            rnn.get_parameter(name).mul_(2)
        (output.sum() + hn.sum()).backward()
        return tuple(parameter.grad for parameter in rnn.parameters())

    wanted, found = (outcome(lambda rnn=rnn: run(rnn)) for rnn in twins())
    assert_same_outcome(found, wanted, tolerance=EXACT)
