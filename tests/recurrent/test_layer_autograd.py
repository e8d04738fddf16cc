"""An attached nn.RNN under everything that autograd, torch.func and torch.compile do with a layer.

T steps, B batch, H state, I input.
"""

import threading

import pytest
import torch
from support.changed import needs_to_be_told
from support.helpers import B, H, I, T, assert_close, assert_identical
from support.rnn_twins import (
    ALGORITHMS,
    EXACT,
    LOSSES,
    WEIGHTS,
    assert_same_as_stock,
    assert_scanned,
    model_twins,
    results,
    state,
    step,
    tensor,
    twins,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("accelerate_everything")


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
    assert scanned.forward.calls and not scanned.forward.fallback_calls


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


@needs_to_be_told
def test_an_output_changed_in_place():
    """The backward needs it, and computes it again; what PyTorch hands out is a copy."""
    found = []
    for rnn in twins():
        x = tensor(T, B, I).requires_grad_()
        output, hn = rnn(x)
        output.mul_(2)
        output[1:, 0] = 0
        (output.square().sum() + hn.sum()).backward()
        found.append({"x": x.grad} | {name: p.grad for name, p in rnn.named_parameters()})
    assert_close(found[1], found[0], EXACT)


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


def test_forward_mode_differentiation():
    tangents = []
    for rnn in twins():
        with torch.autograd.forward_ad.dual_level():
            x = tensor(T, B, I)
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            tangents.append(torch.autograd.forward_ad.unpack_dual(rnn(dual)[0]).tangent)
    torch.testing.assert_close(*tangents)
    assert_scanned(rnn)


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
    """More of them, and other layers: tests/transforms."""
    stock, scanned = twins()
    wanted, found = (
        {"result": transform(lambda x, rnn=rnn: rnn(x)[0].square().sum(), tensor(T, B, I)).detach()}
        for rnn in (stock, scanned)
    )
    assert_close(found, wanted, EXACT)
    assert_scanned(scanned)


def test_saved_tensor_hooks():
    found = []
    for rnn in twins():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), torch.from_numpy):
            output, hn = rnn(tensor(T, B, I))
        LOSSES["both"](output, hn, 0).backward()
        found.append({name: parameter.grad for name, parameter in rnn.named_parameters()})
    assert_close(found[1], found[0], EXACT)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_model(backend):
    torch._dynamo.reset()
    stock, scanned = model_twins()
    wanted = step(stock)
    compiled = torch.compile(scanned, backend=backend)
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
