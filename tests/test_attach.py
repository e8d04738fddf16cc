"""attach, detach and explain without Lightning: everything as in PyTorch, only by a scan.

T steps, B batch, H state, I input.
"""

import copy
import inspect
import io
import itertools
import pickle
import threading
from types import SimpleNamespace

import pytest
import torch
from support.helpers import B, H, I, T, assert_close, assert_identical, is_attached, weights
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl
from bppsa_lightning.attach import attached

ALGORITHMS = ("auto", "linear", "chunked", "blelloch")
LAYOUTS = ("steps first", "batch first", "unbatched")
EXACT = 1e-10
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")

# What a loss may read: (output, h_n, the dimension of time) -> scalar.
LOSSES = {
    "all outputs": lambda output, hn, time: output.square().sum(),
    "last output": lambda output, hn, time: output.select(time, -1).square().sum(),
    "h_n": lambda output, hn, time: hn.square().sum(),
    "both": lambda output, hn, time: output.sin().sum() + hn.square().sum(),
    "expanded": lambda output, hn, time: output.sum() + hn.sum(),
}


def twins(*sizes, algorithm="auto", dtype=torch.float64, **settings):
    """The same nn.RNN twice: as PyTorch made it, and attached."""
    torch.manual_seed(1)
    stock = nn.RNN(*(sizes or (I, H)), **settings).to(dtype)
    scanned = copy.deepcopy(stock)
    assert [chain.module for chain in bl.attach(scanned, algorithm)] == [scanned]
    return stock, scanned


def shape_of(layout, features, steps=T, batch=B):
    return {
        "steps first": (steps, batch, features),
        "batch first": (batch, steps, features),
        "unbatched": (steps, features),
    }[layout]


def tensor(*shape, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def f32(*shape):
    return tensor(*shape, dtype=torch.float32)


def state(layout="steps first", batch=B, hidden=H, dtype=torch.float64):
    return tensor(*((1, hidden) if layout == "unbatched" else (1, batch, hidden)), dtype=dtype)


def results(rnn, x, h0=None, loss="both"):
    """Outputs and all gradients of one forward and backward; x and h0 become leaves."""
    x = x.detach().requires_grad_()
    h0 = None if h0 is None else h0.detach().requires_grad_()
    rnn.zero_grad()
    output, hn = rnn(x, h0)
    time = 1 if rnn.batch_first and x.dim() == 3 else 0
    value = LOSSES[loss](output, hn, time)
    if value.requires_grad:
        value.backward()
    found = {"output": output.detach(), "h_n": hn.detach(), "x": x.grad}
    if h0 is not None:
        found["h0"] = h0.grad
    return found | {name: parameter.grad for name, parameter in rnn.named_parameters()}


def assert_scanned(module, calls=1):
    """Every chain of a module scanned so many calls and handed none over."""
    counts = [(chain.calls, chain.handed_over) for chain in attached(module)]
    assert counts and all(count == (calls, 0) for count in counts), counts


def assert_same_as_stock(stock, scanned, *args, tolerance=EXACT, **kwargs):
    assert_close(results(scanned, *args, **kwargs), results(stock, *args, **kwargs), tolerance)
    assert_scanned(scanned)


# --- Results and gradients -------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("given", [False, True], ids=["no h0", "h0"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_gradients_are_exact(nonlinearity, layout, bias, given, loss):
    settings = {
        "nonlinearity": nonlinearity,
        "bias": bias,
        "batch_first": layout == "batch first",
    }
    for dtype, tolerance in ((torch.float64, EXACT), (torch.float32, 2e-5)):
        pair = twins(dtype=dtype, **settings)
        x = tensor(*shape_of(layout, I), dtype=dtype)
        h0 = state(layout, dtype=dtype) if given else None
        assert_same_as_stock(*pair, x, h0, loss=loss, tolerance=tolerance)
        assert pair[0].weight_hh_l0.grad.any(), "a gradient of zeros compares nothing"


def test_unbatched_input_ignores_batch_first():
    assert_same_as_stock(*twins(batch_first=True), tensor(T, I), state("unbatched"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("steps", [1, 2, 7, 33, 200])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_every_algorithm_gives_the_same_gradients(nonlinearity, steps, algorithm):
    pair = twins(nonlinearity=nonlinearity, algorithm=algorithm)
    with bl.ops.scan_log() as log:
        assert_same_as_stock(*pair, tensor(steps, B, I), state())
    [(cell, shape, plan)] = log.scans
    assert (cell, shape) == (f"RNN-{nonlinearity}", (steps, B, H))
    assert algorithm in ("auto", plan.algorithm)


@pytest.mark.parametrize(
    ("steps", "batch", "features", "hidden"),
    [
        (T, 0, I, H),
        (T, 1, I, H),
        (1, B, I, H),
        (T, B, I, 1),
        (T, B, 1, H),
        (1, 1, 1, 1),
        (2, 3, 40, 33),
    ],
)
@pytest.mark.parametrize("layout", ["steps first", "batch first"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_small_and_odd_sizes(algorithm, layout, steps, batch, features, hidden):
    pair = twins(features, hidden, algorithm=algorithm, batch_first=layout == "batch first")
    x = tensor(*shape_of(layout, features, steps, batch))
    assert_same_as_stock(*pair, x, state(batch=batch, hidden=hidden))


STRIDED = {
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "features apart": lambda t: t.repeat_interleave(2, dim=-1)[..., ::2],
    "features first": lambda t: t.movedim(-1, 0).contiguous().movedim(0, -1),
    "a slice": lambda t: torch.cat([t, t], dim=-1)[..., : t.shape[-1]],
    "every other step": lambda t: t.repeat_interleave(2, dim=0)[::2],
    "expanded": lambda t: t[:, :1].expand_as(t),
}


@pytest.mark.parametrize("loss", ["both", "expanded"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layout", STRIDED)
def test_strided_inputs(layout, batch_first, loss):
    stock, scanned = twins(batch_first=batch_first)
    x = STRIDED[layout](tensor(B, T, I) if batch_first else tensor(T, B, I))
    h0 = STRIDED[layout](state())

    def run(rnn):
        output, hn = rnn(x, h0)
        LOSSES[loss](output, hn, 1 if batch_first else 0).backward()
        return {"output": output.detach(), "x": x.grad, "h0": h0.grad} | {
            name: parameter.grad for name, parameter in rnn.named_parameters()
        }

    for leaf in (x, h0):
        leaf.requires_grad_()
    wanted = run(stock)
    x.grad = h0.grad = None
    assert_close(run(scanned), wanted, EXACT)
    assert_scanned(scanned)


@pytest.mark.parametrize("step", [slice(None, None, 2), slice(None)], ids=["strided", "dense"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_strided_direct_gradients(batch_first, step):
    """What comes after the layer decides the strides of the gradient that it gets."""

    def run(rnn):
        output, hn = rnn(x)
        head = output.permute(2, 0, 1)[step].exp()
        (head.sum() + (output[::2, 1:] * hn.sum()).sum()).backward()
        return {name: parameter.grad for name, parameter in rnn.named_parameters()}

    x = tensor(T, B, I)
    stock, scanned = twins(batch_first=batch_first)
    assert_close(run(scanned), run(stock), EXACT)
    assert_scanned(scanned)


# Recurrent weights (H, H) of about the gain asked for, and the scale of what drives the state.
EXPLODING = {
    "at rest": ("tanh", 3, 0.0),  # every slope is 1: the Jacobian is W itself
    "at rest, gain 8": ("tanh", 8, 0.0),  # leaves the range within 64 steps
    "chaos": ("tanh", 3, 1e-3),
    "half dead": ("relu", 3, 1e-3),
    "half dead, gain 8": ("relu", 8, 1e-3),  # the states themselves overflow
}


@pytest.mark.parametrize("loss", ["early", "late", "all"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dynamics", EXPLODING)
def test_exploding_dynamics_stay_finite_where_pytorch_does(dynamics, algorithm, loss):
    """Over 300 steps products of Jacobians leave float32's range; gradients need not.

    An early loss has no gradient in later steps, where a product's inf * 0 would make a NaN.
    """
    nonlinearity, gain, drive = EXPLODING[dynamics]
    steps, hidden = 300, 16
    direct = torch.zeros(steps, B, hidden)
    direct[{"early": slice(20), "late": slice(-20, None), "all": slice(None)}[loss]] = 1e-3
    stock, scanned = twins(
        I, hidden, bias=False, nonlinearity=nonlinearity, dtype=torch.float32, algorithm=algorithm
    )
    for rnn in (stock, scanned):
        w_hh = gain * tensor(hidden, hidden, seed=5).float() / hidden**0.5
        rnn.weight_hh_l0.data.copy_(w_hh)

    def run(rnn):
        leaves = {"x": drive * f32(steps, B, I), "h0": drive * f32(1, B, hidden)}
        leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
        leaves |= dict(rnn.named_parameters())
        output, _ = rnn(leaves["x"], leaves["h0"])
        gradients = torch.autograd.grad(output, list(leaves.values()), direct)
        return dict(zip(leaves, gradients, strict=True))

    found, wanted = run(scanned), run(stock)
    assert_scanned(scanned)
    for name, want in wanted.items():
        bad = want.isfinite() & ~found[name].isfinite()
        assert not bad.any(), f"{name}: {int(bad.sum())} of {bad.numel()} are not finite"
    if loss == "early":
        assert wanted["x"].isfinite().all() and wanted["x"].any()
        assert_close({"x": found["x"]}, {"x": wanted["x"]}, 1e-3)


# --- Autograd ----------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [(), *((name,) for name in WEIGHTS), WEIGHTS])
@pytest.mark.parametrize("given", [False, True], ids=["no h0", "h0"])
def test_frozen_parameters(frozen, given):
    pair = twins()
    for rnn in pair:
        for name in frozen:
            rnn.get_parameter(name).requires_grad_(False)
    x, h0 = tensor(T, B, I), state() if given else None
    wanted = results(pair[0], x, h0)
    assert [name for name in WEIGHTS if wanted[name] is None] == list(frozen)
    assert_same_as_stock(*pair, x, h0)


@pytest.mark.parametrize("leaf", ["x", "h0"])
def test_only_an_input_wants_a_gradient(leaf):
    found = []
    for rnn in twins():
        rnn.requires_grad_(False)
        inputs = {"x": tensor(T, B, I), "h0": state()}
        inputs[leaf].requires_grad_()
        LOSSES["both"](*rnn(*inputs.values()), 0).backward()
        found.append({name: value.grad for name, value in inputs.items()})
    assert_close(found[1], found[0], EXACT)


def test_nothing_wants_a_gradient():
    _, scanned = twins()
    scanned.requires_grad_(False)
    output, hn = scanned(tensor(T, B, I))
    assert not output.requires_grad and not hn.requires_grad


def test_one_module_twice_in_a_graph():
    pair = twins(H, H)
    x = tensor(T, B, H)

    def run(rnn):
        rnn.zero_grad()
        first, hn = rnn(x)
        second, _ = rnn(first.flip(0), hn)
        (first.square().sum() + second.sin().sum()).backward()
        return {name: parameter.grad for name, parameter in rnn.named_parameters()}

    assert_close(run(pair[1]), run(pair[0]), EXACT)
    assert_scanned(pair[1], calls=2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_penalty(loss, nonlinearity, algorithm):
    """A loss of gradients: derivatives of the derivatives."""
    pair = twins(nonlinearity=nonlinearity, algorithm=algorithm)

    def run(rnn):
        leaves = {"x": tensor(T, B, I).requires_grad_(), "h0": state().requires_grad_()}
        value = LOSSES[loss](*rnn(*leaves.values()), 0)
        inner = [*leaves.values(), rnn.weight_hh_l0]
        penalty = sum(
            g.square().sum() for g in torch.autograd.grad(value, inner, create_graph=True)
        )
        (value + penalty).backward()
        found = {name: leaf.grad for name, leaf in (leaves | dict(rnn.named_parameters())).items()}
        return {"penalty": penalty.detach()} | found

    wanted = run(pair[0])
    # PyTorch leaves None where the penalty of a piecewise linear layer does not reach.
    assert all(value is not None for value in wanted.values())
    assert_close(run(pair[1]), wanted, EXACT)
    assert_scanned(pair[1])


def test_gradcheck_to_the_second_order():
    _, scanned = twins(2, 3, algorithm="chunked")
    names = list(dict(scanned.named_parameters()))

    def run(x, h0, *parameters):
        return torch.func.functional_call(
            scanned, dict(zip(names, parameters, strict=True)), (x, h0)
        )

    leaves = (tensor(4, 2, 2), tensor(1, 2, 3), *(p.detach() for p in scanned.parameters()))
    leaves = tuple(leaf.clone().requires_grad_() for leaf in leaves)
    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)
    assert scanned.forward.calls and not scanned.forward.handed_over


def test_backward_twice_on_a_retained_graph():
    found = []
    for rnn in twins():
        value = LOSSES["both"](*rnn(tensor(T, B, I)), 0)
        value.backward(retain_graph=True)
        once = {name: parameter.grad.clone() for name, parameter in rnn.named_parameters()}
        value.backward()
        twice = {name: parameter.grad for name, parameter in rnn.named_parameters()}
        assert_close(twice, {name: 2 * grad for name, grad in once.items()}, 1e-14)
        with pytest.raises(RuntimeError, match="second time"):
            value.backward()
        found.append(twice)
    assert_close(found[1], found[0], EXACT)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    stock, scanned = twins()
    with mode():
        wanted, found = (dict(enumerate(rnn(tensor(T, B, I)))) for rnn in (stock, scanned))
    assert not found[0].requires_grad
    assert found[0].is_inference() == wanted[0].is_inference()
    assert_close(found, wanted, EXACT)


def test_eval_mode_keeps_gradients():
    pair = [rnn.eval() for rnn in twins()]
    assert_same_as_stock(*pair, tensor(T, B, I), state())


def test_an_output_changed_in_place_is_right_or_refused():
    """The scan keeps its output for the backward, as cuDNN does; PyTorch's CPU loop does not."""
    stock, scanned = twins()
    output, _ = scanned(tensor(T, B, I))
    output.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_h_n_changed_in_place():
    found = []
    for rnn in twins():
        output, hn = rnn(tensor(T, B, I))
        hn.mul_(2)
        (output.sum() + hn.square().sum()).backward()
        found.append({name: parameter.grad for name, parameter in rnn.named_parameters()})
    assert_close(found[1], found[0], EXACT)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(use_reentrant):
    found = []
    for rnn in twins():
        x = tensor(T, B, I).requires_grad_()
        output, hn = checkpoint(rnn, x, use_reentrant=use_reentrant)
        LOSSES["both"](output, hn, 0).backward()
        found.append({"x": x.grad} | {name: p.grad for name, p in rnn.named_parameters()})
    assert_close(found[1], found[0], EXACT)


@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobian_and_hessian(vectorize):
    def run(rnn):
        last = torch.autograd.functional.jacobian(
            lambda x: rnn(x)[1], tensor(3, 2, I), vectorize=vectorize
        )
        curvature = torch.autograd.functional.hessian(
            lambda x: rnn(x)[0].square().sum(), tensor(3, 2, I)
        )
        return {"jacobian": last, "hessian": curvature}

    stock, scanned = twins()
    assert_close(run(scanned), run(stock), EXACT)
    assert scanned.forward.calls == 2


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")
def test_forward_mode_differentiation_is_left_to_pytorch():
    tangents = []
    for rnn in twins():
        with torch.autograd.forward_ad.dual_level():
            x = tensor(T, B, I)
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            tangents.append(torch.autograd.forward_ad.unpack_dual(rnn(dual)[0]).tangent)
    assert torch.equal(*tangents)
    assert "forward-mode" in bl.explain(rnn)


def test_hooks_fire_as_before():
    def run(rnn):
        events = {}

        def note(name, *values):
            tensors = [v for v in values if isinstance(v, torch.Tensor)]
            events.update({f"{len(events)} {name} {i}": v.detach() for i, v in enumerate(tensors)})

        def before(module, args, kwargs):
            note("forward_pre", *args, *kwargs.values())
            return (args[0] * 2, *args[1:]), kwargs

        def after(module, args, result):
            note("forward", *args, *result)
            return result[0] * 3, result[1]

        rnn.register_forward_pre_hook(before, with_kwargs=True)
        rnn.register_forward_hook(after)
        rnn.register_full_backward_pre_hook(lambda _, grads: note("backward_pre", *grads))
        rnn.register_full_backward_hook(lambda _, inner, outer: note("backward", *inner, *outer))
        rnn.weight_hh_l0.register_hook(lambda grad: note("tensor", grad))
        rnn.weight_ih_l0.register_hook(lambda grad: grad * 5)
        rnn.bias_hh_l0.register_post_accumulate_grad_hook(lambda p: note("accumulated", p.grad))
        output, hn = rnn(tensor(T, B, I).requires_grad_(), hx=state().requires_grad_())
        output.register_hook(lambda grad: note("output", grad))
        LOSSES["both"](output, hn, 0).backward()
        return events | {name: parameter.grad for name, parameter in rnn.named_parameters()}

    stock, scanned = twins()
    found, wanted = run(scanned), run(stock)
    assert {name.split()[1] for name in wanted if name[0].isdigit()} == {
        "forward_pre", "forward", "backward_pre", "backward", "tensor", "accumulated", "output"
    }  # fmt: skip
    assert list(found) == list(wanted)
    assert_close(found, wanted, EXACT)
    assert_scanned(scanned)


def test_module_backward_hooks_of_the_parent():
    def run(rnn):
        model = nn.Sequential(nn.Linear(I, I).double(), rnn)
        torch.nn.init.ones_(model[0].weight)
        torch.nn.init.zeros_(model[0].bias)
        seen = []
        model.register_full_backward_hook(lambda _, inner, outer: seen.extend(inner))
        LOSSES["both"](*model(tensor(T, B, I).requires_grad_()), 0).backward()
        return {"x": seen[0], "linear": model[0].weight.grad}

    stock, scanned = twins()
    assert_close(run(scanned), run(stock), EXACT)


# --- Parameters, dtypes, copies ------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.embed = nn.Linear(I, I)
        self.rnn = nn.RNN(I, H, **settings)
        self.head = nn.Linear(H, 2)

    def forward(self, x):
        output, hn = self.rnn(self.embed(x))
        return self.head(output) + self.head(hn)


def model_twins(**settings):
    torch.manual_seed(0)
    stock = Model(**settings).double()
    scanned = copy.deepcopy(stock)
    bl.attach(scanned)
    return stock, scanned


def step(model, x=None):
    """Gradients of one step."""
    model.zero_grad()
    model(tensor(T, B, I) if x is None else x).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_nothing_of_a_model_changes_but_the_instance_forward():
    stock, scanned = model_twins()
    assert list(scanned.state_dict()) == list(stock.state_dict())
    assert_identical(weights(scanned), weights(stock))
    assert [n for n, _ in scanned.named_parameters()] == [n for n, _ in stock.named_parameters()]
    assert [n for n, _ in scanned.named_modules()] == [n for n, _ in stock.named_modules()]
    assert repr(scanned) == repr(stock)
    assert type(scanned.rnn) is nn.RNN
    assert scanned.rnn.__dict__.keys() - stock.rnn.__dict__.keys() == {"forward"}


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


def outcome(call):
    """What a call gave: its tensors, or the type of its error."""
    try:
        result = call()
    except Exception as error:
        return type(error)
    return result


def assert_same_outcome(found, wanted, tolerance=0.0):
    if isinstance(wanted, type):
        assert found is wanted
    else:
        assert not isinstance(found, type), found
        pairs = [dict(enumerate(o)) for o in (found, wanted)]
        assert_close(*pairs, tolerance) if tolerance else assert_identical(*pairs)


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


def test_functional_call_uses_the_weights_it_is_given():
    found = []
    for rnn in twins():
        given = {name: (2 * p).detach().requires_grad_() for name, p in rnn.named_parameters()}
        output, hn = torch.func.functional_call(rnn, given, (tensor(T, B, I),))
        LOSSES["both"](output, hn, 0).backward()
        assert all(parameter.grad is None for parameter in rnn.parameters())
        own = results(rnn, tensor(T, B, I))
        found.append({"output": output.detach()} | {n: p.grad for n, p in given.items()} | own)
    assert_close(found[1], found[0], EXACT)
    assert_scanned(rnn, calls=2)


@pytest.mark.parametrize(
    "transform",
    [
        lambda run, x: torch.func.grad(run)(x),
        lambda run, x: torch.func.jvp(run, (x,), (torch.ones_like(x),))[1],
        lambda run, x: torch.func.vjp(run, x)[1](torch.ones((), dtype=x.dtype))[0],
        lambda run, x: torch.func.jacrev(run)(x),
    ],
    ids=["grad", "jvp", "vjp", "jacrev"],
)
def test_torch_func_transforms(transform):
    found = [
        {"result": transform(lambda x, rnn=rnn: rnn(x)[0].square().sum(), tensor(T, B, I)).detach()}
        for rnn in twins()
    ]
    assert_close(found[1], found[0], EXACT)


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


def test_saved_tensor_hooks():
    found = []
    for rnn in twins():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), torch.from_numpy):
            output, hn = rnn(tensor(T, B, I))
        LOSSES["both"](output, hn, 0).backward()
        found.append({name: parameter.grad for name, parameter in rnn.named_parameters()})
    assert_close(found[1], found[0], EXACT)


def test_compiled_model():
    stock, scanned = model_twins()
    wanted = step(stock)
    compiled = torch.compile(scanned)
    for _ in range(2):
        scanned.zero_grad()
        compiled(tensor(T, B, I)).square().sum().backward()
        found = {name: parameter.grad for name, parameter in scanned.named_parameters()}
        assert_close(found, wanted, EXACT)
    output = {"output": compiled(tensor(2 * T, B, I)).detach()}
    assert_close(output, {"output": stock(tensor(2 * T, B, I)).detach()}, EXACT)
    chain = scanned.rnn.forward
    assert chain.shape == (2 * T, B, H) and chain.reason is None


@pytest.mark.filterwarnings("ignore:The tensor attributes .*_flat_weights:UserWarning")
def test_exported_model():
    _, scanned = model_twins()
    x = tensor(T, B, I)
    program = torch.export.export(scanned, (x,))
    assert_close({"out": program.module()(x).detach()}, {"out": scanned(x).detach()}, EXACT)


def test_threads():
    """Two modules at work in two threads get what each gets alone."""
    models = [model_twins()[1] for _ in range(2)]
    inputs = [tensor(T, B, I, seed=seed) for seed in (1, 2)]
    alone = [step(model, x) for model, x in zip(models, inputs, strict=True)]
    together = [[], []]

    def work(i):
        for _ in range(20):
            together[i].append(step(models[i], inputs[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for wanted, runs in zip(alone, together, strict=True):
        assert len(runs) == 20
        for found in runs:
            assert_identical(found, wanted)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_bits_run_after_run(algorithm):
    _, scanned = twins(I, 17, dtype=torch.float32, algorithm=algorithm)
    x = tensor(100, 5, I, dtype=torch.float32)
    first = results(scanned, x)
    for _ in range(3):
        assert_identical(results(scanned, x), first)


# --- attach and detach -------------------------------------------------------------------------


CONTAINERS = {
    "itself": (lambda: nn.RNN(I, H), [""]),
    "a model": (Model, ["rnn"]),
    "a model in a model": (lambda: nn.ModuleDict({"inner": Model()}), ["inner.rnn"]),
    "ModuleList": (lambda: nn.ModuleList([nn.RNN(I, H), nn.RNN(H, H)]), ["0", "1"]),
    "ModuleDict": (lambda: nn.ModuleDict({"a": nn.RNN(I, H), "b": nn.Linear(2, 2)}), ["a"]),
    "Sequential": (lambda: nn.Sequential(nn.Linear(I, I), nn.RNN(I, H)), ["1"]),
    "no recurrence": (lambda: nn.Linear(2, 2), []),
    "GRUCell and RNN": (lambda: nn.ModuleList([nn.GRUCell(I, H), nn.RNN(I, H)]), ["1"]),
}


@pytest.mark.parametrize("where", CONTAINERS)
def test_attach_finds_chains_anywhere(where):
    build, names = CONTAINERS[where]
    model = build()
    chains = bl.attach(model, "chunked")
    assert isinstance(chains, list)
    assert [chain.name for chain in chains] == names
    for chain in chains:
        assert isinstance(chain, bl.Chain)
        assert chain.module is model.get_submodule(chain.name)
        assert chain.cell == "RNN-tanh" and chain.algorithm == "chunked"
        assert is_attached(chain.module)
        assert chain.name in repr(chain)
    text = bl.explain(model)
    assert text.startswith(f"{len(names)} chain")
    assert all((name or "(itself)") in text for name in names)
    bl.detach(model)
    assert not any(is_attached(module) for module in model.modules())


def test_a_module_with_two_names_is_one_chain():
    rnn = nn.RNN(I, H)
    assert len(bl.attach(nn.ModuleDict({"a": rnn, "b": rnn}))) == 1


def test_attaching_twice_is_attaching_once_with_the_newer_algorithm():
    model = Model()
    own = inspect.getattr_static(model.rnn, "forward")
    [first] = bl.attach(model)
    [second] = bl.attach(model, "blelloch")
    assert second is first and first.algorithm == "blelloch"
    [third] = bl.attach(model.rnn, "linear")
    assert third is first and first.algorithm == "linear" and first.name == ""
    bl.detach(model)
    assert inspect.getattr_static(model.rnn, "forward") is own


def test_detach_restores_everything():
    model = Model()
    x = tensor(T, B, I, dtype=torch.float32)
    before, inside = step(model, x), dict(model.rnn.__dict__)
    chains = bl.attach(model)
    step(model, x)
    bl.detach(model)
    assert type(model.rnn) is nn.RNN
    assert "forward" not in model.rnn.__dict__
    assert model.rnn.__dict__.keys() == inside.keys()
    assert_identical(step(model, x), before)
    assert chains[0].calls == 1
    bl.detach(model)
    assert "0 chains" in bl.explain(model) and "not attached" in bl.explain(model)


def test_detach_between_forward_and_backward():
    stock, scanned = twins()
    found = []
    for rnn in (stock, scanned):
        output, hn = rnn(tensor(T, B, I))
        bl.detach(rnn)
        LOSSES["both"](output, hn, 0).backward()
        found.append({name: parameter.grad for name, parameter in rnn.named_parameters()})
    assert_close(found[1], found[0], EXACT)


def test_a_forward_that_the_user_put_on_the_instance_stays():
    rnn = nn.RNN(I, H)
    rnn.forward = mine = lambda x, hx=None: (x * 2, None)
    assert bl.attach(rnn) == []
    assert rnn.forward is mine
    assert "its forward has been replaced" in bl.explain(rnn)
    bl.detach(rnn)
    assert rnn.forward is mine


def test_a_forward_that_the_user_puts_over_the_chain_stays():
    rnn = nn.RNN(I, H)
    [chain] = bl.attach(rnn)
    rnn.forward = mine = lambda x, hx=None: chain(x * 2, hx)
    rnn(tensor(T, B, I, dtype=torch.float32))
    assert chain.calls == 1
    bl.detach(rnn)
    chain.detach()
    assert rnn.forward is mine


def test_detaching_a_chain_twice():
    rnn = nn.RNN(I, H)
    [chain] = bl.attach(rnn)
    chain.detach()
    chain.detach()
    assert "forward" not in rnn.__dict__


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bl.attach(Model(), "fast"), ValueError, "algorithm: found 'fast', wanted one of"),
        (lambda: bl.attach(Model(), ""), ValueError, "algorithm: found ''"),
        (lambda: bl.attach(Model(), None), TypeError, "algorithm: found NoneType, wanted str"),
        (lambda: bl.attach(lambda x: x), TypeError, "module: found function, wanted .*nn.Module"),
        (lambda: bl.attach(nn.RNN), TypeError, "module: found type"),
        (lambda: bl.detach(None), TypeError, "module: found NoneType"),
        (lambda: bl.explain([Model()]), TypeError, "module: found list"),
    ],
)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_refused_attach_changes_nothing():
    model = Model()
    [chain] = bl.attach(model, "linear")
    with pytest.raises(ValueError, match="algorithm"):
        bl.attach(model, "fast")
    assert chain.algorithm == "linear"


# --- What is left to PyTorch -------------------------------------------------------------------


class Residual(nn.RNN):
    """A user's own layer on top of nn.RNN."""

    def forward(self, input, hx=None):
        output, hn = super().forward(input, hx)
        return output * 2, hn


ALONE = {
    "RNNCell": (lambda: nn.RNNCell(I, H), "your code, where no scan can see it; nn.RNN over"),
    "LSTMCell": (lambda: nn.LSTMCell(I, H), "your code, where no scan can see it; nn.LSTM over"),
    "GRUCell": (lambda: nn.GRUCell(I, H), "your code, where no scan can see it; nn.GRU over"),
    "own forward": (lambda: Residual(I, H), "its forward has been replaced"),
    "Sequential": (
        lambda: nn.Sequential(nn.Linear(I, H), nn.ReLU()),
        "no scan over depth was asked for",
    ),
}


@pytest.mark.parametrize("kind", ALONE)
def test_left_alone_keeps_every_bit_and_is_explained(kind):
    build, reason = ALONE[kind]
    torch.manual_seed(0)
    stock = nn.ModuleDict({"layer": build()})
    model = copy.deepcopy(stock)
    assert bl.attach(model) == []
    assert "forward" not in model["layer"].__dict__

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
    "input size": (call(f32(T, B, I + 1)), "shapes that nn.RNN refuses"),
    "4-D input": (call(f32(1, T, B, I)), "shapes that nn.RNN refuses"),
    "1-D input": (call(f32(I)), "shapes that nn.RNN refuses"),
    "no steps": (call(f32(0, B, I)), "shapes that nn.RNN refuses"),
    "hx of another size": (call(f32(T, B, I), f32(1, B, H + 1)), "shapes that nn.RNN refuses"),
    "hx of another batch": (call(f32(T, B, I), f32(1, B + 1, H)), "shapes that nn.RNN refuses"),
    "hx of two layers": (call(f32(T, B, I), f32(2, B, H)), "shapes that nn.RNN refuses"),
    "2-D hx": (call(f32(T, B, I), f32(B, H)), "shapes that nn.RNN refuses"),
    "3-D hx, unbatched": (call(f32(T, I), f32(1, 1, H)), "shapes that nn.RNN refuses"),
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
    assert (chain.calls, chain.handed_over) == (0, 1)
    assert reason in chain.reason and chain.reason in bl.explain(scanned)
    assert "1 of 1 calls left to PyTorch" in bl.explain(scanned)
    scanned(f32(T, B, I))
    assert (chain.calls, chain.handed_over) == (1, 1)
    assert "scanned again since" in bl.explain(scanned)


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


# --- explain -----------------------------------------------------------------------------------


def test_explain_before_and_after_the_first_call():
    model = nn.ModuleDict({"model": Model(), "step": nn.GRUCell(I, H)})
    bl.attach(model, "chunked")
    row = rows(bl.explain(model))["model.rnn"]
    assert row.cell == "RNN-tanh" and ("?", "?", str(H)) == (row.T, row.B, row.H)
    assert "planned at the first call" in row.why
    model["model"](tensor(T, B, I).float())
    row = rows(bl.explain(model))["model.rnn"]
    assert (row.T, row.B, row.H, row.algorithm) == (str(T), str(B), str(H), "chunked")
    assert row.chunk.isdigit() and row.why == "as asked"
    assert "step" in bl.explain(model) and "2 Linear" in bl.explain(model)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_explain_tells_the_plan_that_runs(algorithm):
    _, scanned = twins(algorithm=algorithm)
    with bl.ops.scan_log() as log:
        results(scanned, tensor(T, B, I))
    [(_, _, plan)] = log.scans
    row = rows(bl.explain(scanned))["(itself)"]
    assert row.algorithm == plan.algorithm and row.why == plan.reason
    assert scanned.forward.plan() == plan


def rows(text):
    """The table of chains as {name: row}; columns are two spaces or more apart."""
    lines = text.splitlines()[1:]
    header = lines[0].split()
    table = {}
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.strip().split("  ") if cell.strip()]
        if len(cells) == len(header):
            table[cells[0]] = SimpleNamespace(**dict(zip(header, cells, strict=True)))
    return table
